"""Where a task's token finds things in each frame."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ctrlformer.config import EnvConfig
from ctrlformer.config.presets import preset
from ctrlformer.encoders import PlacesEncoder, make_encoder
from ctrlformer.errors import ConfigError

SMALL = replace(preset("places").encoder, stem_width=8, stem_convs=1, questions=4)
ENV = EnvConfig(image_size=32)


def build(tasks: int = 1) -> PlacesEncoder:
    torch.manual_seed(0)
    encoder = make_encoder(SMALL, ENV)
    assert isinstance(encoder, PlacesEncoder)
    for _ in range(tasks):
        encoder.add_task()
    return encoder


def dots(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames with one bright square each, and where it is, (N, x and y) from -1 to 1."""
    corner = torch.randint(0, 29, (count, 2))
    frames = torch.zeros(count, 32, 32, 3, dtype=torch.uint8)
    for frame, (x, y) in zip(frames, corner.tolist(), strict=True):
        frame[y : y + 4, x : x + 4] = 255
    return frames, (corner + 1.5) / 15.5 - 1


def test_a_stack_is_told_by_its_newest_frame_and_what_changed() -> None:
    encoder = build()
    stack = torch.randint(0, 256, (2, 32, 32, 9), dtype=torch.uint8)
    singly = [encoder.places(stack[..., 3 * frame : 3 * frame + 3], 0).flatten(1) for frame in range(3)]
    expected = torch.cat([singly[2], singly[1] - singly[0], singly[2] - singly[1]], dim=1)
    torch.testing.assert_close(encoder(stack, 0).policy, encoder.standardise(expected, 0))


def test_painting_finds_a_thing_that_moves() -> None:
    encoder = build()
    optimiser = torch.optim.Adam(encoder.parameters(), 5e-3)
    before = None
    for _ in range(200):
        frames, _ = dots(32)
        encoder.observe(frames, 0)
        loss = encoder.painting_loss(encoder.places(frames, 0), frames, 0)
        before = before or float(loss.detach())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) < 0.6 * before
    frames, where = dots(64)
    with torch.no_grad():
        found = encoder.places(frames, 0)
    correlation = torch.corrcoef(torch.stack([where[:, 0], *found[..., 0].T]))[0, 1:].abs()
    assert float(correlation.max()) > 0.98


def test_a_task_changes_nothing_of_another() -> None:
    encoder, pixels = build(), torch.randint(0, 256, (2, 32, 32, 9), dtype=torch.uint8)
    before = encoder(pixels, 0).policy
    new = encoder.add_task(copy_from=0)
    assert torch.equal(encoder(pixels, 1).policy, before)
    with torch.no_grad():
        for parameter in new:
            parameter.add_(1.0)
    encoder.observe(pixels[..., -3:], 1)
    encoder.standardise.update(torch.randn(4, encoder.features), 1)
    assert torch.equal(encoder(pixels, 0).policy, before)
    assert not torch.equal(encoder(pixels, 1).policy, before)


def test_a_patch_must_divide_the_picture() -> None:
    with pytest.raises(ConfigError, match="does not divide"):
        make_encoder(SMALL, EnvConfig(image_size=30))
