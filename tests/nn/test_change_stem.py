"""The convolution that reads changes from frame to frame."""

from __future__ import annotations

import torch
from torch import nn

from ctrlformer.nn.change_stem import CHANGE_SCALE, ChangeStem


def test_the_stem_reads_the_newest_frame_and_its_changes() -> None:
    stem = ChangeStem(9, 4, 6, stride=4, padding=1)
    plain = nn.Conv2d(9, 4, 6, stride=4, padding=1)
    plain.load_state_dict(stem.state_dict())
    oldest, middle, newest = torch.randn(3, 2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    changes = [CHANGE_SCALE * (newest - middle), CHANGE_SCALE * (middle - oldest)]
    expected = plain(0.5 * torch.cat([newest, *changes], 1))
    read = stem(torch.cat([oldest, middle, newest], 1), 0.5)
    torch.testing.assert_close(read, expected, atol=1e-4, rtol=1e-4)
