from __future__ import annotations

import pytest
import torch

from ctrlformer.nn.frame_coding import FrameDecoder, FrameEncoder, centred, conv_channels


@pytest.mark.parametrize("size", [16, 32, 42, 63, 64, 84])
def test_the_decoder_gives_back_the_size_that_the_encoder_took(size: int) -> None:
    encoder, decoder = FrameEncoder(size, 2), FrameDecoder(7, size, 2)
    pixels = centred(torch.zeros(3, size, size, 3, dtype=torch.uint8))
    assert encoder(pixels).shape == (3, encoder.outputs)
    assert decoder(torch.zeros(3, 7)).shape == pixels.shape


def test_pictures_of_64_get_the_four_convolutions_of_the_paper() -> None:
    assert conv_channels(64, 32) == [3, 32, 64, 128, 256]
    assert FrameEncoder(64, 32).outputs == 1024


def test_pixels_are_centred() -> None:
    frames = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 4, 4, 3)
    assert centred(frames)[:, 0, 0, 0].tolist() == [-0.5, 0.5]
