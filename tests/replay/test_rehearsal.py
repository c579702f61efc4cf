"""Kept observations: what is written is what is read, and what is drawn is what was kept."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ctrlformer.errors import CheckpointError, RunError
from ctrlformer.replay import rehearsal
from ctrlformer.replay.rehearsal import Outputs, RehearsalBuffer, RehearsalSampler
from ctrlformer.storage.checkpoint import pack, unpack


def some(file: Path, task: str = "toy/reach", count: int = 5) -> RehearsalBuffer:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 4, 4, 9), dtype=torch.uint8, generator=generator)
    outputs = Outputs(*(torch.randn(count, width, generator=generator) for width in (3, 2, 2)))
    return rehearsal.store(file, task, pixels, outputs)


def same(task: str, observations: torch.Tensor) -> Outputs:
    """An agent whose outputs have the shapes of `some`."""
    return Outputs(*(torch.zeros(len(observations), width) for width in (3, 2, 2)))


def test_reading_gives_back_what_was_kept(tmp_path: Path) -> None:
    file = tmp_path / "kept" / "task.safetensors"
    written = some(file)
    read = rehearsal.load(file, written.task, written.checksum, same)
    assert torch.equal(read.observations, written.observations)
    assert all(torch.equal(a, b) for a, b in zip(read.outputs, written.outputs, strict=True))
    assert some(file).checksum == written.checksum  # written again after a crash: the same


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "task.safetensors"
    written = some(file)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"task\.safetensors is damaged"):
        rehearsal.load(file, written.task, written.checksum, same)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"task\.safetensors cannot be read"):
        rehearsal.load(file, written.task, written.checksum, same)


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: parts.pop("features"),
        lambda parts: parts.update(extra=parts["features"]),
        lambda parts: parts.update(features=parts["features"][:, :2]),
        lambda parts: parts.update(action=parts["action"][:3]),
        lambda parts: parts.update(deviation=parts["deviation"].int()),
        lambda parts: parts.update({name: part[:0] for name, part in parts.items()}),
    ],
)
def test_what_does_not_fit_the_agent_is_named(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None]
) -> None:
    file = tmp_path / "task.safetensors"
    some(file)
    parts = unpack(file, file.read_bytes())
    change(parts)
    file.write_bytes(pack(parts))
    with pytest.raises(CheckpointError, match=r"task\.safetensors does not fit this run"):
        rehearsal.load(file, "toy/reach", hashlib.sha256(file.read_bytes()).hexdigest(), same)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file, not a folder")
    with pytest.raises(RunError, match=r"cannot write .*kept"):
        some(tmp_path / "kept" / "task.safetensors")


def test_draws_belong_together_and_reach_every_task(tmp_path: Path) -> None:
    both = [some(tmp_path / "a.safetensors", "a"), some(tmp_path / "b.safetensors", "b")]
    rehearser, rng, seen = RehearsalSampler(both, 7), np.random.default_rng(0), set()
    for _ in range(20):
        drawn = rehearser.draw(rng)
        seen.add(drawn.task)
        assert len(drawn.observations) == 7
        (source,) = (one for one in both if one.task == drawn.task)
        for pixels, features in zip(drawn.observations, drawn.outputs.features, strict=True):
            (place,) = (n for n in range(5) if torch.equal(source.observations[n], pixels))
            assert torch.equal(source.outputs.features[place], features)
    assert seen == {"a", "b"}


def test_spread_is_the_features_own_and_never_zero(tmp_path: Path) -> None:
    varied = some(tmp_path / "a.safetensors")
    features = varied.outputs.features.numpy()
    assert float(varied.spread) == pytest.approx(np.sqrt(features.var(0).mean()), rel=1e-5)
    still = Outputs(torch.ones(3, 2), torch.zeros(3, 1), torch.zeros(3, 1))
    assert float(rehearsal.store(tmp_path / "b.safetensors", "b", torch.zeros(3, 4, 4, 9).byte(), still).spread) > 0
