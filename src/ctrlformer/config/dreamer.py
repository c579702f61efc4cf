"""Settings of Dreamer's world model and of learning in imagination. Standard library only, as `schema.py`."""

from __future__ import annotations

from dataclasses import dataclass

from ctrlformer.config.validate import at_least, at_most, positive, share


@dataclass(frozen=True)
class DreamerConfig:
    """A latent world model, and actor and value learnt in what it imagines; for --agent.kind dreamer.

    The defaults are those of Hafner et al. 2019, "Dream to Control".
    """

    frame_size: int = 64
    """Side in pixels to which frames are averaged down before they are stored; fewer are quicker."""
    conv_width: int = 32
    """Channels of the first convolution; every further one has twice as many."""
    deterministic: int = 200
    """Numbers in the deterministic, recurrent part of a latent state."""
    stochastic: int = 30
    """Numbers in the stochastic part."""
    hidden: int = 200
    """Width of the latent model's hidden layers."""
    head_width: int = 400
    """Width of the hidden layers of reward model, value model and actor."""
    reward_layers: int = 2
    """Hidden layers of the reward model."""
    value_layers: int = 3
    """Hidden layers of the value model."""
    actor_layers: int = 4
    """Hidden layers of the actor."""
    sequence_length: int = 50
    """Frames in each sequence of a batch, or as many as the longest episode has."""
    horizon: int = 15
    """Steps imagined from every state of a batch."""
    reward_scale: float = 1.0
    """Imagined rewards are multiplied by it before actor and value model learn from them."""
    return_mixing: float = 0.95
    """Lambda: weight of longer returns against shorter ones."""
    kl_scale: float = 1.0
    """Weight of the divergence of the latent state from its prediction."""
    free_nats: float = 3.0
    """Divergence that costs nothing."""
    model_learning_rate: float = 6e-4
    """World model: everything that reconstructs frames and predicts latent states and rewards."""
    actor_learning_rate: float = 8e-5
    value_learning_rate: float = 8e-5
    initial_deviation: float = 5.0
    """Of the actor's Gaussian before tanh, at the start."""
    exploration_noise: float = 0.3
    """Deviation of the noise added to actions while collecting."""

    def __post_init__(self) -> None:
        at_least(1, self, "conv_width", "deterministic", "stochastic", "hidden", "head_width")
        at_least(1, self, "reward_layers", "value_layers", "actor_layers")
        at_least(2, self, "sequence_length", "horizon")  # one step has two ends
        at_least(16, self, "frame_size")
        at_most(1024, self, "frame_size", "conv_width", "sequence_length", "horizon")
        at_most(8192, self, "deterministic", "stochastic", "hidden", "head_width")
        at_most(64, self, "reward_layers", "value_layers", "actor_layers")
        at_least(0, self, "free_nats", "exploration_noise")
        positive(self, "kl_scale", "model_learning_rate", "actor_learning_rate", "value_learning_rate")
        positive(self, "initial_deviation", "reward_scale")
        share(self, "return_mixing")
