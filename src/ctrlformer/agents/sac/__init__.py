"""SAC on an encoder's features, with DrQ's regularisation and BYOL."""
