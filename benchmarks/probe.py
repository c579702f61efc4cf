"""The quickest honest check of an encoder: can it learn to read the state from the pixels?

A linear head on a policy token's features is trained, together with the encoder, to tell cart position,
angle and both speeds from randomly shifted stacks of random cartpole states. An encoder that is slow here
is slow in reinforcement learning too, and this takes a minute instead of an hour.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from torch import Tensor, nn

from benchmarks.arguments import run
from benchmarks.cartpole_states import STATE_NAMES, LabelledStacks, cartpole_states
from ctrlformer.config import Config
from ctrlformer.config.presets import preset
from ctrlformer.encoders import Encoder, make_encoder
from ctrlformer.errors import ConfigError
from ctrlformer.nn.heads import feature_projection
from ctrlformer.storage.files import to_json, write_atomic
from ctrlformer.system.memory import keep_freed_memory

TRAIN_STATES, TEST_STATES = 1600, 400
LEARNING_RATE = 5e-4
BATCH = 64


class ProbeResult(NamedTuple):
    r2: tuple[float, ...]  # share of variance explained on unseen states, in the order of STATE_NAMES
    feature_std: float  # spread of the features over states before any learning: near 0 is a dead encoder
    seconds_per_update: float


def probe_data(seed: int = 0) -> tuple[LabelledStacks, LabelledStacks]:
    """Training and test states; about half a minute of rendering."""
    data = cartpole_states(TRAIN_STATES + TEST_STATES, seed)
    return (
        LabelledStacks(data.pixels[:TRAIN_STATES], data.states[:TRAIN_STATES]),
        LabelledStacks(data.pixels[TRAIN_STATES:], data.states[TRAIN_STATES:]),
    )


def probe(
    config: Config,
    data: tuple[LabelledStacks, LabelledStacks],
    updates: int = 300,
    seed: int = 0,
    learning_rate: float = LEARNING_RATE,
    on_update: Callable[[int], None] | None = None,
) -> ProbeResult:
    """Train `config`'s encoder on the states for `updates` updates and score it on the unseen ones."""
    train, test = data
    rng = np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = make_encoder(config.encoder, config.env)
        encoder.add_task()
        head = _regression_head(encoder, len(STATE_NAMES))
    optimiser = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=learning_rate, weight_decay=0)
    states = torch.from_numpy(train.states)

    def batch(indices: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(_shifted(train.pixels[indices], config.agent.shift, rng))

    for _ in range(20):  # statistics of the pixels, where the encoder keeps them
        encoder.observe(batch(rng.integers(len(train.pixels), size=BATCH)), 0)
    with torch.no_grad():
        feature_std = float(encoder(torch.from_numpy(test.pixels), 0).policy.std(0).mean())
    started = time.perf_counter()
    for update in range(updates):
        indices = rng.integers(len(train.pixels), size=BATCH)
        predicted = head(encoder(batch(indices), 0).policy)  # (B, 5)
        loss = (predicted - states[indices]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if on_update is not None:
            on_update(update)
    seconds = (time.perf_counter() - started) / updates
    with torch.no_grad():
        error = head(encoder(torch.from_numpy(test.pixels), 0).policy).numpy() - test.states
    r2 = 1 - (error**2).mean(0) / test.states.var(0)
    return ProbeResult(tuple(float(value) for value in r2), feature_std, seconds)


def _regression_head(encoder: Encoder, outputs: int) -> nn.Module:
    """Linear, behind the projection that the encoder leaves to its heads."""
    width = encoder.projection
    if width is None:
        return nn.Linear(encoder.features, outputs)
    return nn.Sequential(feature_projection(encoder.features, width), nn.Linear(width, outputs))


def main(names: Sequence[str], updates: int, learning_rate: float, seed: int, json_file: Path | None) -> None:
    """Print a table of the presets' encoders, best first."""
    if updates < 1:
        raise ConfigError(f"updates is {updates}: it must be at least 1")
    configs = {name: preset(name) for name in names}
    for name, config in configs.items():
        if config.agent.kind == "dreamer":
            raise ConfigError(f"preset {name} cannot be probed: its world model is no encoder of stacked frames")
        if config.encoder.kind == "resnet50":
            raise ConfigError(f"preset {name} cannot be probed: all but one layer of its encoder is frozen")
    keep_freed_memory()
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), transient=True) as progress:
        bar = progress.add_task("rendering states", total=updates * len(configs))
        data = probe_data(seed)
        results = {}
        for name, config in configs.items():
            progress.update(bar, description=f"probing {name}")
            results[name] = probe(config, data, updates, seed, learning_rate, lambda _: progress.advance(bar))
    table = Table(Column("encoder", no_wrap=True), *STATE_NAMES, "mean", "spread", "s an update")
    for name, result in sorted(results.items(), key=lambda item: -float(np.mean(item[1].r2))):
        figures = (*result.r2, float(np.mean(result.r2)), result.feature_std, result.seconds_per_update)
        table.add_row(name, *(f"{figure:.2f}" for figure in figures))
    Console().print(f"share of variance explained on unseen states after {updates} updates, seed {seed}")
    Console().print(table)
    if json_file is not None:
        rows = {name: {**result._asdict(), "states": STATE_NAMES} for name, result in results.items()}
        settings = {"updates": updates, "learning_rate": learning_rate, "batch": BATCH, "seed": seed}
        write_atomic(json_file, to_json({**settings, "encoders": rows}))


def _shifted(pixels: NDArray[np.uint8], largest: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Each picture moved by a random offset, its edge repeated: (B, H, W, C)."""
    height, width = pixels.shape[1:3]
    padded = np.pad(pixels, ((0, 0), (largest, largest), (largest, largest), (0, 0)), mode="edge")
    offsets = rng.integers(2 * largest + 1, size=(len(pixels), 2))
    return np.stack([p[y : y + height, x : x + width] for p, (y, x) in zip(padded, offsets, strict=True)])


@dataclass(frozen=True)
class Probe:
    """Rank encoders in minutes: how well each learns to read a cartpole's state from pixels."""

    presets: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PRESET [PRESET ...]")] = (
        "compact_vit",
        "drq",
    )
    """Presets whose encoders are compared; paper and official take minutes each."""
    updates: int = 300
    """Updates of each encoder."""
    learning_rate: float = LEARNING_RATE
    seed: int = 0
    json: Path | None = None
    """Also write the results to this file."""

    def __call__(self) -> None:
        main(self.presets, self.updates, self.learning_rate, self.seed, self.json)


if __name__ == "__main__":
    sys.exit(run(Probe, "python -m benchmarks.probe"))
