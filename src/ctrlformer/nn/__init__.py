"""Network parts that know nothing of reinforcement learning."""
