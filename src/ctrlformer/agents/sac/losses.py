"""The losses as pure functions of tensors, with the paper's equation numbers.

Every Q value, target and log-probability is (B,), or (V, B) over V views: a stray (B, 1) would broadcast
into (B, B) without an error, so each function checks.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ctrlformer.nn.shapes import same_shape


def soft_value(q1: Tensor, q2: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """Equation 7: min of the two target Qs minus the entropy term."""
    same_shape(q1, q2, log_prob)
    return torch.minimum(q1, q2) - temperature * log_prob


def td_target(reward: Tensor, discount: Tensor, next_values: Tensor) -> Tensor:
    """Equations 6 and 8: r + gamma V(s'), V averaged over the views of s'. `next_values` is (V, B)."""
    same_shape(reward, discount, next_values[0])
    return reward + discount * next_values.mean(0)


def critic_loss(q1: Tensor, q2: Tensor, target: Tensor) -> Tensor:
    """Equation 6: squared Bellman error, summed over both Qs and all views of s (Listing 3). Qs are (V, B)."""
    same_shape(q1[0], q2[0], target)
    same_shape(q1, q2)
    return ((q1 - target).square() + (q2 - target).square()).mean(1).sum(0)


def actor_loss(q1: Tensor, q2: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """Equation 9, as a loss (Listing 2): temperature * log pi - min Q."""
    same_shape(q1, q2, log_prob)
    return (temperature * log_prob - torch.minimum(q1, q2)).mean()


def temperature_loss(temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Appendix A: the temperature rises while the entropy is below its target."""
    return (temperature * (-log_prob - target_entropy).detach()).mean()


def byol_loss(prediction: Tensor, projection: Tensor, kind: str = "cosine") -> Tensor:
    """Equation 10: 2 - 2 cos between online prediction and target projection, both (B, P); or plain MSE."""
    same_shape(prediction, projection)
    if kind == "mse":
        return F.mse_loss(prediction, projection)
    return (2 - 2 * F.cosine_similarity(prediction, projection, dim=-1)).mean()


def prediction_loss(prediction: Tensor, following: Tensor) -> Tensor:
    """Beyond the paper: squared error of the next features (B, F), standardised over the batch: features that shrink
    or agree would gain nothing by it."""
    same_shape(prediction, following)
    return (prediction - standardised(following, 1e-2)).square().mean()


def reward_loss(prediction: Tensor, reward: Tensor) -> Tensor:
    """Beyond the paper: squared error of the standardised rewards (B,): a share of what there is to explain."""
    same_shape(prediction, reward)
    return (prediction - standardised(reward, 1e-3)).square().mean()


def standardised(values: Tensor, least: float) -> Tensor:
    """With mean 0 and std 1 over the batch, the first axis; a std below `least` counts as that much."""
    centred = values - values.mean(0)
    return centred / centred.square().mean(0).sqrt().clamp(min=least)


def squared_drift(features: Tensor, kept: Tensor, spread: Tensor) -> Tensor:
    """Beyond the paper: how far an old task's features (N, F) moved, in units of what they vary by from one
    observation to another (`spread`), squared."""
    same_shape(features, kept)
    return (features - kept).square().mean() / spread.square()


def policy_distance(action: Tensor, std: Tensor, kept_action: Tensor, kept_std: Tensor) -> Tensor:
    """Beyond the paper: how far an old policy moved: mean actions and stds, all (N, A).

    A divergence of the Gaussians would explode where a policy is sure of itself (std e^-10)."""
    same_shape(action, std, kept_action, kept_std)
    return ((action - kept_action).square() + (std - kept_std).square()).sum(-1).mean()


def byol_momentum(start: float, progress: float) -> float:
    """BYOL's cosine rise of the target's momentum from `start` to 1 over a stage."""
    return 1 - (1 - start) * (math.cos(math.pi * min(max(progress, 0.0), 1.0)) + 1) / 2
