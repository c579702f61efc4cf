"""What is read from a frame: the right pixels go in, each frame once, and the bits do not depend on who asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_resnets import FEATURES, WIDTH, write_weights

from ctrlformer.config import EncoderConfig
from ctrlformer.encoders import make_frame_reader
from ctrlformer.encoders.frames import REMEMBERED, PictureReader, ResNetReader, SmallPictureReader

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EncoderConfig:
    weights = write_weights(tmp_path_factory.mktemp("weights") / "resnet.safetensors")
    return EncoderConfig(kind="resnet50", weights=str(weights), resnet_width=WIDTH, resnet_size=48)


def pictures(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 20, 20, 3), dtype=np.uint8)


def passes(reader: ResNetReader) -> list[int]:
    """A list that grows with every pass of the network."""
    seen: list[int] = []
    reader._resnet.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    return seen


def test_a_frame_is_scaled_resized_and_normalised(config: EncoderConfig) -> None:
    reader = ResNetReader(config, CPU)
    (frame,) = pictures(1)
    x = torch.from_numpy(frame).permute(2, 0, 1)[None] / 255
    x = F.interpolate(x, (48, 48), mode="bilinear", align_corners=False)
    for colour, (mean, deviation) in enumerate(zip((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), strict=True)):
        x[:, colour] = (x[:, colour] - mean) / deviation
    expected = reader._resnet(x)[0]
    features = reader.read(frame)
    assert features.dtype == np.float32
    assert features.shape == (FEATURES,) == (reader.features,)
    torch.testing.assert_close(torch.tensor(features), expected, rtol=1e-4, atol=1e-5)


def test_a_stack_is_its_frames_oldest_first(config: EncoderConfig) -> None:
    reader = ResNetReader(config, CPU)
    frames = pictures(3)
    stack = reader.stack(np.concatenate(frames, axis=-1))
    assert torch.equal(stack, torch.stack([torch.tensor(reader.read(frame)) for frame in frames]))
    assert len(torch.unique(stack, dim=0)) == 3


def test_a_frame_is_encoded_once_however_often_it_is_seen(config: EncoderConfig) -> None:
    reader = ResNetReader(config, CPU)
    seen = passes(reader)
    frames = pictures(10)
    observations = [np.concatenate(frames[[max(t - back, 0) for back in (2, 1, 0)]], axis=-1) for t in range(10)]
    for t, observation in enumerate(observations):
        reader.read(frames[t])  # the collector's
        reader.stack(observation)  # the policy's
    assert seen == [1] * 10


def test_forgotten_frames_are_read_again_alike(config: EncoderConfig) -> None:
    reader = ResNetReader(config, CPU)
    frames = pictures(REMEMBERED + 1)
    first = reader.read(frames[0])
    for frame in frames[1:]:
        reader.read(frame)
    again = reader.read(frames[0])
    assert again is not first
    assert np.array_equal(again, first)


def test_what_is_remembered_cannot_be_spoilt(config: EncoderConfig) -> None:
    reader = ResNetReader(config, CPU)
    frames = pictures(3)
    stack = reader.stack(np.concatenate(frames, axis=-1))
    before = stack.clone()
    stack.zero_()
    assert torch.equal(reader.stack(np.concatenate(frames, axis=-1)), before)
    with pytest.raises(ValueError, match="read-only"):
        reader.read(frames[0])[:] = 0


def test_a_threads_own_number_of_threads_changes_nothing(tmp_path: Path) -> None:
    """Torch gives a new thread as many threads as were last set anywhere, and sums in another order with another
    number; a wide network, because a narrow one is never shared out."""
    weights = write_weights(tmp_path / "resnet.safetensors", width=32)
    config = EncoderConfig(kind="resnet50", weights=str(weights), resnet_width=32, resnet_size=128)
    (frame,) = pictures(1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        reader, found = ResNetReader(config, CPU), []
        for threads in (1, 2, 1):
            with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,)) as caller:
                found.append(caller.submit(reader.read, frame).result())
            reader._known.cache_clear()
        assert all(np.array_equal(one, found[0]) for one in found)
    finally:
        torch.set_num_threads(before)


def test_other_encoders_keep_pictures() -> None:
    reader = make_frame_reader(EncoderConfig(), CPU)
    assert isinstance(reader, PictureReader)
    assert reader.features is None
    (frame,) = pictures(1)
    assert reader.read(frame) is frame
    assert np.array_equal(reader.stack(frame), frame)


def test_small_pictures_are_averages_stored_as_pictures() -> None:
    (frame,) = pictures(1)
    small = SmallPictureReader(10).read(frame)
    assert small.dtype == np.uint8
    expected = frame.astype(np.float32).reshape(10, 2, 10, 2, 3).mean((1, 3))
    assert np.abs(small - expected).max() <= 0.5
    assert SmallPictureReader(7).stack(np.concatenate([frame] * 3, -1)).shape == (7, 7, 9)
    assert np.array_equal(SmallPictureReader(64).read(frame), frame)
