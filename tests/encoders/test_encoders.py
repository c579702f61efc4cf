"""What each preset's encoder looks like, and that it computes what it should."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from ctrlformer.config import EncoderConfig, EnvConfig
from ctrlformer.config.presets import PRESETS, preset
from ctrlformer.encoders import CtrlFormerEncoder, Encoder, make_encoder
from ctrlformer.encoders.ctrlformer import PatchEmbedding
from ctrlformer.errors import ConfigError

SMALL = EncoderConfig(dim=16, heads=2, blocks_per_stage=1, mlp_ratio=2, feature_dim=8)


def build(config: EncoderConfig, tasks: int = 1) -> Encoder:
    torch.manual_seed(0)
    encoder = make_encoder(config, EnvConfig())
    for _ in range(tasks):
        encoder.add_task()
    return encoder


def pixels(count: int = 2) -> torch.Tensor:
    return torch.randint(0, 256, (count, 84, 84, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize("tasks", [1, 3])
def test_shapes(name: str, tasks: int) -> None:
    config = preset(name).encoder
    encoder = build(config, tasks)
    tokens = encoder(torch.rand(2, 3, 2048) if config.kind == "resnet50" else pixels(), 0)
    assert tokens.policy.shape == (2, encoder.features)
    assert (encoder.projection or encoder.features) == config.feature_dim
    assert tokens.contrastive.shape == (2, encoder.contrastive_dim)


@pytest.mark.parametrize(
    ("name", "counts"), [("paper", [196, 98, 49]), ("official", [196, 98, 49]), ("compact_vit", [16, 8, 4])]
)
def test_tokens_halve_between_stages(name: str, counts: list[int]) -> None:
    encoder = build(preset(name).encoder)
    assert isinstance(encoder, CtrlFormerEncoder)
    assert encoder.token_counts() == counts
    seen: list[int] = []
    for stage in encoder.stages:
        stage[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    encoder(pixels(), 0)
    assert seen == [count + 2 for count in counts], "patches and two special tokens"


# Written out for `paper`: patch 324*192+192, 9 blocks of 12*192^2+13*192, positions 196*192, two tokens,
# final norm 2*192, head 192*50+50.
PAPER_PARAMETERS = 324 * 192 + 192 + 9 * (12 * 192**2 + 13 * 192) + 196 * 192 + 2 * 192 + 2 * 192 + 192 * 50 + 50


def test_paper_has_the_parameters_its_appendix_implies() -> None:
    assert sum(p.numel() for p in build(preset("paper").encoder).parameters()) == PAPER_PARAMETERS


def test_official_differs_by_depth_pooling_map_and_special_positions() -> None:
    blocks = 3 * (12 * 192**2 + 13 * 192)
    residual = 192 * 384 + 384 + 384 * 192 + 192
    expected = PAPER_PARAMETERS - blocks + residual + 2 * 192
    assert sum(p.numel() for p in build(preset("official").encoder).parameters()) == expected


def test_drq_has_its_published_layers() -> None:
    encoder = build(preset("drq").encoder)
    weights = [p for p in encoder.parameters() if p.ndim > 1]
    assert [tuple(p.shape) for p in weights] == [(32, 9, 3, 3), (32, 32, 3, 3), (32, 32, 3, 3), (32, 32, 3, 3)]
    assert sum(p.numel() for p in encoder.parameters()) == 2624 + 3 * 9248
    assert (encoder.features, encoder.projection) == (32 * 35 * 35, 50)
    for weight in weights:  # fully orthogonal, with ReLU's gain
        rows = weight.detach().flatten(1)
        torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(32), rtol=0, atol=1e-4)


def test_official_starts_orthogonal_and_its_patch_map_has_the_gain_of_a_convolution() -> None:
    encoder = build(preset("official").encoder)
    for weight, gain in ((encoder.head.weight, 1.0), (encoder.embed.linear.weight, 2.0)):
        rows = weight.detach()
        torch.testing.assert_close(rows @ rows.T, gain * torch.eye(len(rows)), rtol=0, atol=1e-4)
    assert any(isinstance(layer, torch.nn.ReLU) for layer in encoder.after_pool.layers)


def test_patch_embedding_is_a_convolution_with_stride_equal_to_its_kernel() -> None:
    torch.manual_seed(0)
    embedding = PatchEmbedding(6, 9, 16)
    x = pixels()
    kernel = embedding.linear.weight.view(16, 6, 6, 9).permute(0, 3, 1, 2)
    expected = F.conv2d(x.permute(0, 3, 1, 2).float() / 255, kernel, embedding.linear.bias, stride=6)
    torch.testing.assert_close(embedding(x, None, 1 / 255), expected.permute(0, 2, 3, 1), rtol=1e-4, atol=1e-5)


def test_centring_after_the_map_equals_centring_the_pixels() -> None:
    torch.manual_seed(0)
    embedding = PatchEmbedding(6, 9, 16)
    x, mean = pixels(), torch.rand(84, 84, 9) * 255
    scale = torch.tensor(0.05)
    centred = ((x.float() - mean) * scale).permute(0, 3, 1, 2)
    kernel = embedding.linear.weight.view(16, 6, 6, 9).permute(0, 3, 1, 2)
    expected = F.conv2d(centred, kernel, embedding.linear.bias, stride=6).permute(0, 2, 3, 1)
    torch.testing.assert_close(embedding(x, mean, scale), expected, rtol=1e-3, atol=1e-3)


def test_pixels_are_scaled_to_one_in_paper_and_left_alone_in_official() -> None:
    assert build(preset("paper").encoder).pixel_scale(0) == 1 / 255
    assert build(preset("official").encoder).pixel_scale(0) == 1.0


def test_tanh_bounds_the_features() -> None:
    loud = 1000 * torch.randn(8)
    for tanh in (True, False):
        encoder = build(replace(SMALL, feature_tanh=tanh))
        with torch.no_grad():
            encoder.head.bias.copy_(loud)
        assert (float(encoder(pixels(), 0).policy.abs().max()) <= 1) == tanh


def test_a_new_token_is_a_copy_and_no_old_parameter_is_replaced() -> None:
    encoder = build(SMALL)
    before = {name: id(p) for name, p in encoder.named_parameters()}
    (token,) = encoder.add_task(copy_from=0)
    assert isinstance(encoder, CtrlFormerEncoder)
    assert torch.equal(token, encoder.policy_tokens[0])
    assert token is not encoder.policy_tokens[0]
    after = {name: id(p) for name, p in encoder.named_parameters()}
    assert before.items() <= after.items()


def test_every_parameter_of_the_encoder_learns() -> None:
    for config in (
        SMALL,
        replace(SMALL, stem="conv", patch_size=4),
        replace(SMALL, stem="conv", patch_size=4, init="orthogonal"),
        replace(SMALL, pooling="max3_mlp", positions="all"),
    ):
        encoder = build(config, tasks=2)
        tokens = encoder(pixels(), 0)
        (tokens.policy.square().sum() + tokens.contrastive.square().sum()).backward()
        assert [name for name, p in encoder.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_the_picture_decides_the_features() -> None:
    encoder = build(preset("compact_vit").encoder)
    first, second = encoder(pixels(2), 0).policy
    assert not torch.allclose(first, second)


def test_normalised_pixels_hide_the_background() -> None:
    encoder = build(preset("compact_vit").encoder)
    background = pixels(1).expand(32, -1, -1, -1)
    encoder.observe(background, 0)
    assert encoder.statistics is not None
    torch.testing.assert_close(encoder.statistics.mean[0], background[0].float())


def test_a_patch_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"patch_size 5 does not divide env\.image_size 84"):
        build(replace(SMALL, patch_size=5))


def test_a_conv_stem_on_a_picture_of_few_patches_has_no_convolutions() -> None:
    encoder = make_encoder(replace(SMALL, stem="conv", stem_width=8), EnvConfig(image_size=36))
    encoder.add_task()
    assert encoder(pixels()[:, :36, :36], 0).policy.shape == (2, 8)
