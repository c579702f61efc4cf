"""The ResNet is ResNet-50: its tensors' names and shapes, what it computes, and that it never changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from small_resnets import FEATURES, WIDTH, resnet_tensors
from torch import Tensor

from ctrlformer.config import EncoderConfig, EnvConfig
from ctrlformer.encoders import make_encoder
from ctrlformer.encoders.resnet import Bottleneck, ResNet, empty_resnet, resnet_features

BATCH_NORM = ("weight", "bias", "running_mean", "running_var")


def written_out(width: int) -> dict[str, tuple[int, ...]]:
    """The architecture, tensor by tensor: (channels out, channels in, kernel, kernel) and the norms beside them."""
    shapes: dict[str, tuple[int, ...]] = {}

    def convolution(name: str, norm: str, inputs: int, outputs: int, kernel: int) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs, kernel, kernel)
        shapes.update({f"{norm}.{part}": (outputs,) for part in BATCH_NORM})
        shapes[f"{norm}.num_batches_tracked"] = ()

    convolution("conv1", "bn1", 3, width, 7)
    inputs = width
    for layer, (blocks, factor) in enumerate(((3, 1), (4, 2), (6, 4), (3, 8)), start=1):
        middle = factor * width
        for block in range(blocks):
            place = f"layer{layer}.{block}"
            convolution(f"{place}.conv1", f"{place}.bn1", inputs, middle, 1)
            convolution(f"{place}.conv2", f"{place}.bn2", middle, middle, 3)
            convolution(f"{place}.conv3", f"{place}.bn3", middle, 4 * middle, 1)
            if block == 0:
                convolution(f"{place}.downsample.0", f"{place}.downsample.1", inputs, 4 * middle, 1)
            inputs = 4 * middle
    return shapes


def test_names_and_shapes_are_those_of_the_public_file() -> None:
    found = {name: tuple(tensor.shape) for name, tensor in empty_resnet(64).state_dict().items()}
    assert found == written_out(64)
    assert len(found) == 320 - 2  # the public file has the classifier's two as well
    assert found["layer4.0.downsample.0.weight"] == (2048, 1024, 1, 1)


def test_it_has_resnet_50s_published_number_of_parameters() -> None:
    classifier = 2048 * 1000 + 1000
    assert sum(p.numel() for p in empty_resnet(64).parameters()) + classifier == 25_557_032


def norm(tensors: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    weight, bias, mean, variance = (tensors[f"{name}.{part}"] for part in BATCH_NORM)
    return F.batch_norm(x, mean, variance, weight, bias, training=False)


def block_by_hand(tensors: dict[str, Tensor], place: str, x: Tensor, stride: int) -> Tensor:
    y = F.relu(norm(tensors, f"{place}bn1", F.conv2d(x, tensors[f"{place}conv1.weight"])))
    y = F.conv2d(y, tensors[f"{place}conv2.weight"], stride=stride, padding=1)
    y = F.relu(norm(tensors, f"{place}bn2", y))
    y = norm(tensors, f"{place}bn3", F.conv2d(y, tensors[f"{place}conv3.weight"]))
    if f"{place}downsample.0.weight" in tensors:
        shortcut = F.conv2d(x, tensors[f"{place}downsample.0.weight"], stride=stride)
        x = norm(tensors, f"{place}downsample.1", shortcut)
    return F.relu(x + y)


@pytest.mark.parametrize(("inputs", "stride"), [(12, 1), (8, 1), (8, 2)])
def test_a_bottleneck_is_three_convolutions_beside_a_shortcut(inputs: int, stride: int) -> None:
    torch.manual_seed(0)
    block = Bottleneck(inputs, 3, stride).eval()
    for name, buffer in block.named_buffers():
        if name.endswith(("mean", "var")):
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    x = torch.randn(2, inputs, 9, 9)
    expected = block_by_hand(block.state_dict(), "", x, stride)
    assert expected.shape[-1] == (9 if stride == 1 else 5)
    torch.testing.assert_close(block(x), expected)


def small() -> ResNet:
    resnet = ResNet(WIDTH)
    resnet.load_state_dict({name: t for name, t in resnet_tensors().items() if not name.startswith("fc.")})
    return resnet


def test_the_whole_network_is_its_layers_one_after_the_other() -> None:
    tensors = resnet_tensors()
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    x = F.relu(norm(tensors, "bn1", F.conv2d(images, tensors["conv1.weight"], stride=2, padding=3)))
    x = F.max_pool2d(x, 3, stride=2, padding=1)
    for layer, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            x = block_by_hand(tensors, f"layer{layer}.{block}.", x, stride=2 if layer > 1 and block == 0 else 1)
    assert x.shape == (2, FEATURES, 2, 2)  # a 32nd of the picture
    found = small()(images)
    assert found.shape == (2, FEATURES)
    assert float(found.std()) > 0.01
    torch.testing.assert_close(found, x.mean((2, 3)))


def test_it_is_frozen_whatever_is_asked_of_it() -> None:
    resnet = small()
    before = {name: tensor.clone() for name, tensor in resnet.state_dict().items()}
    resnet.train()
    resnet(torch.randn(4, 3, 32, 32))
    assert not any(module.training for module in resnet.modules())
    assert not any(p.requires_grad for p in resnet.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in resnet.state_dict().items())


def test_the_trained_layer_reads_every_frame_in_order() -> None:
    config = EncoderConfig(kind="resnet50", resnet_width=WIDTH, feature_dim=8)
    torch.manual_seed(0)
    encoder = make_encoder(config, EnvConfig(frame_stack=3))
    encoder.add_task()
    encoder.add_task()
    features = torch.rand(5, 3, FEATURES)
    tokens = encoder(features, 0)
    assert tokens.policy.shape == (5, 8)
    assert torch.equal(tokens.policy, encoder(features, 1).policy)
    weight, bias = encoder.head.weight, encoder.head.bias
    oldest_first = torch.cat([features[:, 0], features[:, 1], features[:, 2]], dim=1)
    expected = torch.tanh(F.layer_norm(F.linear(oldest_first, weight, bias), (8,)))  # type: ignore[arg-type]
    torch.testing.assert_close(tokens.contrastive, expected)
    assert set(dict(encoder.named_parameters())) == {"head.weight", "head.bias", "norm.weight", "norm.bias"}
    loud = make_encoder(replace(config, feature_tanh=False), EnvConfig())
    loud.add_task()
    assert float(loud(100 * features, 0).policy.detach().abs().max()) > 1


def test_features_follow_the_width() -> None:
    assert resnet_features(64) == 2048
    assert [tuple(t.shape) for t in empty_resnet(WIDTH).state_dict().values()] == list(written_out(WIDTH).values())
