"""Each loss against a slow and obvious re-computation."""

import math

import pytest
import torch

from ctrlformer.agents.sac import losses

B = 7


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_soft_value() -> None:
    q1, q2, log_prob = torch.randn(3, B)
    value = losses.soft_value(q1, q2, log_prob, torch.tensor(0.3))
    expected = [min(float(q1[i]), float(q2[i])) - 0.3 * float(log_prob[i]) for i in range(B)]
    torch.testing.assert_close(value, torch.tensor(expected))


def test_the_target_averages_both_views() -> None:
    reward, discount, first, second = torch.rand(4, B)
    target = losses.td_target(reward, discount, torch.stack([first, second]))
    expected = [float(reward[i] + discount[i] * (first[i] + second[i]) / 2) for i in range(B)]
    torch.testing.assert_close(target, torch.tensor(expected))


def test_critic_loss_sums_both_views_and_both_critics() -> None:
    q1, q2, target = torch.randn(2, B), torch.randn(2, B), torch.randn(B)
    expected = 0.0
    for view in range(2):
        for q in (q1, q2):
            expected += sum((float(q[view, i]) - float(target[i])) ** 2 for i in range(B)) / B
    assert float(losses.critic_loss(q1, q2, target)) == pytest.approx(expected, rel=1e-5)


def test_actor_loss() -> None:
    q1, q2, log_prob = torch.randn(3, B)
    expected = sum(0.2 * float(log_prob[i]) - min(float(q1[i]), float(q2[i])) for i in range(B)) / B
    assert float(losses.actor_loss(q1, q2, log_prob, torch.tensor(0.2))) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("entropy", "rises"), [(-3.0, True), (1.0, False)])
def test_temperature_rises_only_below_the_target_entropy(entropy: float, rises: bool) -> None:
    log_temperature = torch.tensor(-1.0, requires_grad=True)
    log_prob = torch.full((B,), -entropy, requires_grad=True)
    losses.temperature_loss(log_temperature.exp(), log_prob, target_entropy=-1.0).backward()
    assert log_temperature.grad is not None
    assert (float(log_temperature.grad) < 0) == rises
    assert log_prob.grad is None, "the actor must not learn from the temperature's loss"


def test_byol_is_the_squared_distance_of_unit_vectors() -> None:
    prediction, projection = torch.randn(B, 5), torch.randn(B, 5)
    unit = lambda x: x / x.norm(dim=-1, keepdim=True)  # noqa: E731
    expected = (unit(prediction) - unit(projection)).square().sum(-1).mean()
    torch.testing.assert_close(losses.byol_loss(prediction, projection), expected)
    torch.testing.assert_close(
        losses.byol_loss(prediction, projection, "mse"), (prediction - projection).square().mean()
    )


def test_momentum_rises_from_its_start_to_one() -> None:
    path = [losses.byol_momentum(0.996, p / 10) for p in range(11)]
    assert path[0] == pytest.approx(0.996)
    assert path[-1] == 1.0
    assert path == sorted(path)
    assert losses.byol_momentum(0.996, 0.5) == pytest.approx(0.998)
    assert math.isclose(losses.byol_momentum(0.996, 1.7), 1.0)


def test_a_stray_axis_is_an_error_not_a_broadcast() -> None:
    flat, column = torch.randn(B), torch.randn(B, 1)
    for call in (
        lambda: losses.soft_value(flat, flat, column, torch.tensor(0.1)),
        lambda: losses.td_target(flat, column, flat[None]),
        lambda: losses.critic_loss(flat[None], flat[None], column),
        lambda: losses.actor_loss(flat, column, flat, torch.tensor(0.1)),
        lambda: losses.byol_loss(flat[None], column),
    ):
        with pytest.raises(ValueError, match="broadcast"):
            call()
