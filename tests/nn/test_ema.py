"""The target network is a real copy that follows, buffers included."""

import torch
from torch import nn

from ctrlformer.nn.ema import ema_update, frozen_copy


def test_parameters_move_by_tau_and_buffers_are_copied() -> None:
    torch.manual_seed(0)
    online = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    target = frozen_copy(online)
    before = [p.clone() for p in target.parameters()]
    with torch.no_grad():
        for p in online.parameters():
            p.add_(1.0)
    online(torch.randn(8, 3))  # moves the batch norm's running figures
    ema_update(target, online, tau=0.25)
    for old, new, source in zip(before, target.parameters(), online.parameters(), strict=True):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * source)
        assert not new.requires_grad
        assert source.requires_grad
    assert torch.equal(target[1].running_mean, online[1].running_mean)  # type: ignore[arg-type]
    assert int(target[1].num_batches_tracked) == 1  # type: ignore[arg-type]


def test_a_frozen_copy_shares_no_memory() -> None:
    online = nn.Linear(2, 2)
    target = frozen_copy(online)
    with torch.no_grad():
        online.weight.add_(1.0)
    assert not torch.equal(target.weight, online.weight)
