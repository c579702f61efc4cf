"""Where a task's token finds things in stacked frames."""

from __future__ import annotations

from dataclasses import replace

import torch

from ctrlformer.config import EnvConfig
from ctrlformer.config.presets import preset
from ctrlformer.encoders import PlacesEncoder, make_encoder

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
    """Stacks with one bright square each, the same in every frame, and where it is, (N, x and y) from -1 to 1."""
    corner = torch.randint(0, 29, (count, 2))
    stacks = torch.zeros(count, 32, 32, 9, dtype=torch.uint8)
    for stack, (x, y) in zip(stacks, corner.tolist(), strict=True):
        stack[y : y + 4, x : x + 4] = 255
    return stacks, (corner + 1.5) / 15.5 - 1


def test_an_odd_picture_has_a_map_too() -> None:
    encoder = make_encoder(SMALL, EnvConfig(image_size=33))
    encoder.add_task()
    pixels = torch.randint(0, 256, (2, 33, 33, 9), dtype=torch.uint8)
    features = encoder(pixels, 0).policy
    assert features.shape == (2, encoder.features)
    assert isinstance(encoder, PlacesEncoder)
    assert encoder.painting_loss(features, pixels, 0).isfinite()


def test_painting_finds_a_thing_that_moves() -> None:
    encoder = build()
    optimiser = torch.optim.Adam(encoder.parameters(), 5e-3)
    before = None
    for _ in range(200):
        stacks, _ = dots(32)
        encoder.observe(stacks, 0)
        loss = encoder.painting_loss(encoder(stacks, 0).policy, stacks, 0)
        before = before or float(loss.detach())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) < 0.6 * before
    stacks, where = dots(64)
    with torch.no_grad():
        found = encoder(stacks, 0).policy.unflatten(1, (-1, 3))
    correlation = torch.corrcoef(torch.stack([where[:, 0], *found[..., 0].T]))[0, 1:].abs()
    assert float(correlation.max()) > 0.98


def test_places_in_bf16_are_those_in_fp32_within_a_part_of_a_pixel() -> None:
    encoder, (stacks, _) = build(), dots(16)
    encoder.observe(stacks, 0)
    exact = encoder(stacks, 0).policy
    encoder.bf16 = True
    rounded = encoder(stacks, 0).policy
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, atol=0.02, rtol=0)


def test_a_task_changes_nothing_of_another() -> None:
    encoder, pixels = build(), torch.randint(0, 256, (2, 32, 32, 9), dtype=torch.uint8)
    before = encoder(pixels, 0).policy
    new = encoder.add_task(copy_from=0)
    assert torch.equal(encoder(pixels, 1).policy, before)
    with torch.no_grad():
        for parameter in new:
            parameter.add_(1.0)
    encoder.observe(pixels, 1)
    assert torch.equal(encoder(pixels, 0).policy, before)
    assert not torch.equal(encoder(pixels, 1).policy, before)
