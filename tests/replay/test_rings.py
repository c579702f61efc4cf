"""Stacks cut by compiled code and by torch against NumPy's own edge padding."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrlformer.replay.rings import DeviceRing, FeatureRing, HostRing
from ctrlformer.replay.stack_kernel import _compiled, write_stacks

CPU = torch.device("cpu")
SLOTS = 6


def padded_crops(frames: np.ndarray, slots: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The definition: pad the whole stack with its edge, then crop."""
    size, reach = frames.shape[1], int(np.abs(offsets).max())
    crops = []
    for chosen, (dy, dx) in zip(slots, offsets + reach, strict=True):
        stack = np.concatenate(frames[chosen], axis=-1)
        padded = np.pad(stack, ((reach, reach), (reach, reach), (0, 0)), mode="edge")
        crops.append(padded[dy : dy + size, dx : dx + size])
    return np.stack(crops)


# Frames wider and narrower than the five pixels copied at once, offsets up to beyond the frame.
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 24),
    stack=st.sampled_from([3, 3, 1, 2, 4]),
    count=st.integers(1, 9),
    reach=st.integers(0, 30),
)
def test_both_rings_cut_what_edge_padding_shows(seed: int, size: int, stack: int, count: int, reach: int) -> None:
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 256, (SLOTS, size, size, 3), dtype=np.uint8)
    slots = rng.integers(0, SLOTS, (count, stack))
    offsets = rng.integers(-reach, reach + 1, (count, 2))
    expected = torch.from_numpy(padded_crops(frames, slots, offsets))
    for ring in (HostRing(SLOTS, size, CPU), DeviceRing(SLOTS, size, CPU)):
        for slot, frame in enumerate(frames):
            ring.write(slot, frame)
        stacks = ring.stacks(slots, offsets)
        assert stacks.dtype == torch.uint8
        assert torch.equal(stacks, expected), type(ring).__name__


@pytest.mark.parametrize("on_device", [True, False])
def test_a_feature_ring_stacks_what_was_written_and_shifts_nothing(on_device: bool) -> None:
    rng = np.random.default_rng(0)
    features = rng.random((SLOTS, 7), np.float32)
    ring = FeatureRing(SLOTS, 7, CPU, on_device)
    for slot, frame in enumerate(features):
        ring.write(slot, frame)
    slots = rng.integers(0, SLOTS, (20, 3))
    stacks = ring.stacks(slots, rng.integers(-4, 5, (20, 2)))
    assert stacks.dtype == torch.float32
    assert np.array_equal(stacks, features[slots])
    stacks.zero_()
    assert np.array_equal(ring.frames, features)


def test_a_device_ring_is_on_its_device() -> None:
    meta = torch.device("meta")
    assert DeviceRing(SLOTS, 4, meta).frames.device.type == "meta"
    assert FeatureRing(SLOTS, 4, meta, on_device=True).frames.device.type == "meta"
    host = FeatureRing(SLOTS, 4, meta, on_device=False)
    assert host.frames.device.type == "cpu"
    assert host.stacks(np.zeros((2, 3), np.int64), np.zeros((2, 2), np.int64)).device.type == "meta"


@pytest.mark.parametrize("offset", range(-9, 10))
def test_nothing_is_written_beside_the_stacks(offset: int) -> None:
    frames = np.full((SLOTS, 8, 8, 3), 7, np.uint8)
    room = np.zeros((3, 8, 8, 9), np.uint8)
    write_stacks(frames, np.zeros((1, 3), np.int64), np.full((1, 2), offset), room[1:2])
    assert (room[1] == 7).all()
    assert not room[[0, 2]].any()


def test_rows_that_are_not_contiguous_are_refused() -> None:
    """The vector code would read and write other bytes than meant."""
    frames = np.zeros((SLOTS, 8, 16, 3), np.uint8)[:, :, ::2]
    with pytest.raises(numba.TypingError, match="contiguous"):
        write_stacks(frames, np.zeros((1, 3), np.int64), np.zeros((1, 2), np.int64), np.zeros((1, 8, 8, 9), np.uint8))


def test_several_threads_may_cut_from_one_ring_at_once() -> None:
    rng = np.random.default_rng(0)
    ring = HostRing(SLOTS, 20, CPU)
    for slot in range(SLOTS):
        ring.write(slot, rng.integers(0, 256, (20, 20, 3), dtype=np.uint8))
    jobs = [(rng.integers(0, SLOTS, (64, 3)), rng.integers(-4, 5, (64, 2))) for _ in range(40)]
    with ThreadPoolExecutor(3) as callers:
        found = list(callers.map(lambda job: ring.stacks(*job), jobs))
    for job, stacks in zip(jobs, found, strict=True):
        assert np.array_equal(stacks, padded_crops(ring.frames, *job))


def test_compiled_code_needs_no_folder_to_be_kept_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only install and no home: also for root, who may write in folders that are read-only for others."""
    source = tmp_path / "filler.py"
    source.write_text("def fill(array):\n    array[:] = 7\n")
    (tmp_path / "__pycache__").write_text("a file where numba wants a folder")
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(source))
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    spec = importlib.util.spec_from_file_location("filler", source)
    assert spec is not None
    assert spec.loader is not None
    filler = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(filler)
    with pytest.raises(RuntimeError, match="cannot cache"):
        numba.njit(filler.fill, cache=True)
    array = np.zeros(3)
    _compiled(filler.fill)(array)
    assert array.tolist() == [7, 7, 7]
