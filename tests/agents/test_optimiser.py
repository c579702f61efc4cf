from __future__ import annotations

import pytest
import torch
from torch import nn

from ctrlformer.agents.optimiser import Optimiser
from ctrlformer.config import AgentConfig
from ctrlformer.errors import NonFiniteError


def optimiser_of(*parameters: nn.Parameter, deferred: bool = False) -> Optimiser:
    optimiser = Optimiser("critic", AgentConfig(learning_rate=0.1), torch.device("cpu"))
    optimiser.deferred = deferred
    optimiser.add(parameters, 1.0, 0.0)
    return optimiser


def test_groups_step_at_their_own_share_of_the_rate() -> None:
    first, second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimiser = optimiser_of(first)
    optimiser.add([second], 0.5, 0.0)
    optimiser.set_rate(0.2)
    optimiser.step((first + second).sum())  # Adam's first step has the size of its rate
    torch.testing.assert_close(first.detach(), torch.full((3,), 0.8))
    torch.testing.assert_close(second.detach(), torch.full((3,), 0.9))


def test_clipping_bounds_what_adam_sees_and_the_norm_is_the_one_before() -> None:
    weight = nn.Parameter(torch.zeros(2))
    optimiser = optimiser_of(weight)
    assert float(optimiser.step((weight * torch.tensor([3.0, 4.0])).sum(), clip=1.0)) == pytest.approx(5.0)
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, torch.tensor([0.6, 0.8]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_loss_or_gradient_raises_at_once_and_nothing_changes(bad: float) -> None:
    weight = nn.Parameter(torch.ones(1))
    with pytest.raises(NonFiniteError, match="the critic loss is"):
        optimiser_of(weight).step((weight * bad).sum())
    with pytest.raises(NonFiniteError, match="the critic gradient is"):
        optimiser_of(weight).step((weight - 1).sqrt().sum())  # 0, with the slope 1/0
    assert weight.item() == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_deferred_a_bad_step_is_skipped_and_told_when_asked(bad: float) -> None:
    weight = nn.Parameter(torch.ones(1))
    optimiser = optimiser_of(weight, deferred=True)
    optimiser.step(weight.sum())
    optimiser.check()
    before, moments = weight.item(), {name: t.clone() for name, t in optimiser.tensors().items()}
    optimiser.step((weight * bad).sum())
    assert weight.item() == before
    assert all(torch.equal(moments[name], t) for name, t in optimiser.tensors().items() if name != "0.step")
    optimiser.step(weight.sum())  # later good steps do not hide it
    assert weight.item() != before
    with pytest.raises(NonFiniteError, match="stopped being finite"):
        optimiser.check()


def test_deferred_and_immediate_steps_are_the_same() -> None:
    results = []
    for deferred in (False, True):
        weight = nn.Parameter(torch.linspace(-1, 1, 5))
        optimiser = optimiser_of(weight, deferred=deferred)
        for _ in range(3):
            optimiser.step(weight.square().sum(), clip=1.0)
        results.append(weight.detach())
    assert torch.equal(*results)


@pytest.mark.parametrize(
    "change",
    [
        {"0.exp_avg": torch.zeros(2)},
        {"0.exp_avg_sq": torch.zeros(4)},
        {"0.exp_avg": torch.zeros(3, dtype=torch.int64)},
        {"0.step": torch.zeros(3)},
        {"1.step": torch.zeros(())},
        {"-1.step": torch.zeros(())},
        {"0.other": torch.zeros(3)},
        {"nonsense": torch.zeros(3)},
    ],
)
def test_moments_that_do_not_fit_are_refused(change: dict[str, torch.Tensor]) -> None:
    """The fused step walks raw memory: a moment that is too small would be read beyond its end."""
    weight = nn.Parameter(torch.ones(3))
    optimiser = optimiser_of(weight)
    optimiser.step(weight.sum())
    saved = optimiser.tensors()
    with pytest.raises(ValueError, match="parameter"):
        optimiser_of(nn.Parameter(torch.ones(3))).load_tensors(saved | change)
    with pytest.raises(ValueError, match="parameter"):
        optimiser_of(nn.Parameter(torch.ones(3))).load_tensors({"0.step": saved["0.step"]})
