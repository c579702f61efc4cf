"""Each loss against a slow and obvious re-computation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from ctrlformer.agents.dreamer import losses
from ctrlformer.agents.dreamer.rssm import Gaussian

H, N, DISCOUNT, MIXING = 5, 3, 0.9, 0.7


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_likelihoods_are_those_of_gaussians_but_for_a_constant() -> None:
    pixels, shown = numbers(4, 3, 2, 2), numbers(4, 3, 2, 2, seed=1)
    constant = 0.5 * math.log(2 * math.pi)
    expected = -(Normal(shown, 1.0).log_prob(pixels) + constant).sum((1, 2, 3)).mean()
    torch.testing.assert_close(losses.reconstruction_loss(pixels, shown), expected)
    reward, predicted = numbers(4, 6), numbers(4, 6, seed=1)
    expected = -(Normal(predicted, 1.0).log_prob(reward) + constant).mean()
    torch.testing.assert_close(losses.reward_loss(reward, predicted), expected)


def test_divergence_is_torchs_and_free_below_the_free_nats() -> None:
    posterior = Gaussian(numbers(4, 2, 3), numbers(4, 2, 3, seed=1).exp())
    prior = Gaussian(numbers(4, 2, 3, seed=2), numbers(4, 2, 3, seed=3).exp())
    kl = losses.divergence(posterior, prior)
    torch.testing.assert_close(kl, kl_divergence(Normal(*posterior), Normal(*prior)).sum(-1))
    assert float(losses.divergence(prior, prior).abs().max()) < 1e-6
    assert losses.divergence_loss(kl, 0.0) == kl.mean()
    assert losses.divergence_loss(kl, 1e6) == 1e6


def n_step_return(reward: Tensor, value: Tensor, t: int, k: int) -> Tensor:
    """Equation 5: rewards of the next k states, then the value, which the horizon brings earlier."""
    end = min(t + k, H - 1)
    return sum((DISCOUNT ** (n - t) * reward[n] for n in range(t, end)), DISCOUNT ** (end - t) * value[end])


def test_lambda_returns_are_the_mixture_that_equation_6_writes_out() -> None:
    reward, value = numbers(H, N), numbers(H, N, seed=1)
    returns = losses.lambda_returns(reward, value, DISCOUNT, MIXING)
    assert returns.shape == (H - 1, N)
    for t in range(H - 1):
        left = H - 1 - t
        mixed = sum((1 - MIXING) * MIXING ** (n - 1) * n_step_return(reward, value, t, n) for n in range(1, left))
        torch.testing.assert_close(returns[t], mixed + MIXING ** (left - 1) * n_step_return(reward, value, t, left))


@pytest.mark.parametrize(("mixing", "steps"), [(0.0, 1), (1.0, H)])
def test_lambda_0_is_one_step_and_lambda_1_goes_to_the_horizon(mixing: float, steps: int) -> None:
    reward, value = numbers(H, N), numbers(H, N, seed=1)
    returns = losses.lambda_returns(reward, value, DISCOUNT, mixing)
    torch.testing.assert_close(returns[0], n_step_return(reward, value, 0, steps))


def test_later_imagined_states_count_less() -> None:
    returns, value = numbers(H - 1, N), numbers(H - 1, N, seed=1)
    weights = torch.tensor([1.0, 0.9, 0.81, 0.729])[:, None]
    torch.testing.assert_close(losses.actor_loss(returns, DISCOUNT), -(weights * returns).mean())
    expected = 0.5 * (weights * (value - returns) ** 2).mean()
    torch.testing.assert_close(losses.value_loss(value, returns, DISCOUNT), expected)


def test_a_value_s_target_gets_no_gradient() -> None:
    returns = numbers(H - 1, N).requires_grad_()
    value = numbers(H - 1, N, seed=1).requires_grad_()
    losses.value_loss(value, returns, DISCOUNT).backward()
    assert returns.grad is None
    assert value.grad is not None


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        losses.reward_loss(numbers(4, 6), numbers(4, 6, 1))
    with pytest.raises(ValueError, match="broadcast"):
        losses.lambda_returns(numbers(H, N), numbers(H, N, 1), DISCOUNT, MIXING)
