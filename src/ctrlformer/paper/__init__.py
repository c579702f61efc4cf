"""The paper's experiments as data, the runs they need, and their tables beside the published scores."""
