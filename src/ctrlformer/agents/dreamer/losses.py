"""Dreamer's losses as pure functions, with the equation numbers of Hafner et al. 2019, "Dream to Control".

Log-likelihoods are those of Gaussians with std 1, without their constants.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ctrlformer.agents.dreamer.rssm import Gaussian
from ctrlformer.nn.shapes import same_shape


def reconstruction_loss(pixels: Tensor, reconstructed: Tensor) -> Tensor:
    """Equation 10, J_O: summed over a frame's pixels, mean over frames. Both (N, 3, S, S)."""
    same_shape(pixels, reconstructed)
    return 0.5 * (pixels - reconstructed).square().flatten(1).sum(1).mean()


def reward_loss(reward: Tensor, predicted: Tensor) -> Tensor:
    """Equation 10, J_R. Both (B, T)."""
    same_shape(reward, predicted)
    return 0.5 * (reward - predicted).square().mean()


def divergence(posterior: Gaussian, prior: Gaussian) -> Tensor:
    """Equation 10, J_D: KL(posterior || prior), summed over a state's numbers: (..., S) to (...)."""
    same_shape(*posterior, *prior)
    ratio = (posterior.std / prior.std).square()
    apart = ((posterior.mean - prior.mean) / prior.std).square()
    return 0.5 * (ratio + apart - 1 - ratio.log()).sum(-1)


def divergence_loss(kl: Tensor, free_nats: float) -> Tensor:
    """The mean divergence, free below `free_nats`: a state may always say something new about its frame."""
    return kl.mean().clamp(min=free_nats)


def lambda_returns(reward: Tensor, value: Tensor, discount: float, mixing: float) -> Tensor:
    """Equations 4 to 6, computed backwards: V(s_t) = r_t + discount ((1 - lambda) v(s_t+1) + lambda V(s_t+1)), and
    the value itself at the horizon. Rewards and values of H states, (H, N), to returns of all but the last."""
    same_shape(reward, value)
    returns = [value[-1]]
    for t in range(len(reward) - 2, -1, -1):
        returns.append(reward[t] + discount * ((1 - mixing) * value[t + 1] + mixing * returns[-1]))
    return torch.stack(returns[:0:-1])


def actor_loss(returns: Tensor, discount: float) -> Tensor:
    """Equation 7, as a loss; imagined states count less the further away they are. (H - 1, N)."""
    return -(_weights(returns, discount) * returns).mean()


def value_loss(value: Tensor, returns: Tensor, discount: float) -> Tensor:
    """Equation 8, with the same weights. Both (H - 1, N); the returns are a fixed target."""
    same_shape(value, returns)
    return 0.5 * (_weights(returns, discount) * (value - returns.detach()).square()).mean()


def _weights(returns: Tensor, discount: float) -> Tensor:
    """discount ** t, (H - 1, 1)."""
    return discount ** torch.arange(len(returns), dtype=returns.dtype, device=returns.device)[:, None]
