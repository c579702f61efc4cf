from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrlformer.nn import byte_patches
from ctrlformer.nn.byte_patches import patches_linear


def as_convolution(pixels: torch.Tensor, patch: int, weight: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """The same map as a convolution whose stride is its kernel."""
    channels = pixels.shape[-1]
    kernel = weight.view(-1, patch, patch, channels).permute(0, 3, 1, 2)
    out = torch.nn.functional.conv2d(pixels.permute(0, 3, 1, 2).float(), kernel, stride=patch)
    return out.permute(0, 2, 3, 1) + offset.view(*out.shape[2:], -1)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.sampled_from([1, 2, 3]), st.integers(1, 3), st.integers(1, 4), st.integers(1, 6))
def test_it_is_a_strided_convolution_forwards_and_backwards(
    batch: int, patch: int, rows: int, columns: int, dim: int
) -> None:
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (batch, rows * patch, columns * patch, 3), dtype=torch.uint8)
    weight = torch.randn(dim, patch * patch * 3, requires_grad=True)
    offset = torch.randn(rows * columns, dim, requires_grad=True)
    found, expected = (f(pixels, patch, weight, offset) for f in (patches_linear, as_convolution))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-2)
    pull = torch.randn_like(expected)
    gradients = [torch.autograd.grad((out * pull).sum(), (weight, offset)) for out in (found, expected)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-1)


def test_many_chunks_give_what_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = torch.randint(0, 256, (7, 12, 12, 3), dtype=torch.uint8)
    weight, offset = torch.randn(5, 27), torch.zeros(16, 5)
    whole = patches_linear(pixels, 3, weight, offset)
    monkeypatch.setattr(byte_patches, "CHUNK_FLOATS", 27 * 9)  # nine rows at a time, which do not divide 112
    torch.testing.assert_close(patches_linear(pixels, 3, weight, offset), whole, rtol=1e-4, atol=1e-2)


def test_the_mean_image_may_be_floats() -> None:
    mean = torch.rand(1, 6, 6, 3) * 255
    weight, offset = torch.randn(4, 27), torch.zeros(4, 4)
    torch.testing.assert_close(
        patches_linear(mean, 3, weight, offset), as_convolution(mean, 3, weight, offset), rtol=1e-4, atol=1e-3
    )
