"""Dreamer's world model, which all tasks share: frames to latent states, and from these back to frames."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from ctrlformer.agents.dreamer import losses
from ctrlformer.agents.dreamer.heads import DreamerHeads
from ctrlformer.agents.dreamer.rssm import LatentModel, State
from ctrlformer.config.dreamer import DreamerConfig
from ctrlformer.nn.frame_coding import FrameDecoder, FrameEncoder, centred


class WorldLoss(NamedTuple):
    """What the world model made of sequences."""

    total: Tensor
    states: State  # (B, L, ...) of the posterior
    figures: dict[str, Tensor]


class WorldModel(nn.Module):
    """Sees single frames: what several of them tell, such as speed, its latent state remembers."""

    def __init__(self, config: DreamerConfig, frame_size: int) -> None:
        super().__init__()
        self.config = config
        self.encoder = FrameEncoder(frame_size, config.conv_width)
        self.latent = LatentModel(config, self.encoder.outputs)
        self.decoder = FrameDecoder(self.latent.features, frame_size, config.conv_width)

    def see(self, frames: Tensor, before: State, action: Tensor, noise: Tensor | None = None) -> State:
        """The states after mapped actions (N, hidden) led to frames (N, S, S, 3): drawn, or without noise the mean."""
        embedded = self.latent.embedding_in(self.encoder(centred(frames)))
        deterministic = self.latent.carry_on(before, action)
        seen = self.latent.posterior(deterministic, embedded)
        return State(deterministic, seen.mean if noise is None else seen.sample(noise))

    def loss(self, heads: DreamerHeads, frames: Tensor, action: Tensor, reward: Tensor, noise: Tensor) -> WorldLoss:
        """Equation 10 on sequences: frames (B, L, S, S, 3), actions (B, L - 1, A) between them, what these earned
        (B, L - 1), and noise for the states. A state's reward is what came with its frame: the first's is unknown."""
        pixels = centred(frames.flatten(0, 1))  # (B L, 3, S, S)
        embedding = self.encoder(pixels).unflatten(0, frames.shape[:2])
        led_to = heads.action_map(F.pad(action, (0, 0, 1, 0)))  # (B, L, hidden); nothing is known to lead to the first
        states, prior, posterior = self.latent.observe(embedding, led_to, noise)
        features = states.features  # (B, L, F)
        reconstruction = losses.reconstruction_loss(pixels, self.decoder(features.flatten(0, 1)))
        predicted = losses.reward_loss(reward, heads.reward(features[:, 1:]).squeeze(-1))
        kl = losses.divergence(posterior, prior)  # (B, L)
        total = reconstruction + predicted + self.config.kl_scale * losses.divergence_loss(kl, self.config.free_nats)
        figures = {
            "kl": kl.detach().mean(),
            "reconstruction_loss": reconstruction.detach(),
            "reward_loss": predicted.detach(),
            "feature_std": features.detach().flatten(0, 1).std(0).mean(),
        }
        return WorldLoss(total, states, figures)
