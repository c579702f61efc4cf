"""Causal task attention: what a task computes does not depend on the tasks that come after it."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ctrlformer.config import EncoderConfig, EnvConfig
from ctrlformer.config.presets import preset
from ctrlformer.encoders import CtrlFormerEncoder, Tokens
from ctrlformer.nn.transformer import Attention

SMALL = EncoderConfig(dim=16, heads=2, blocks_per_stage=2, mlp_ratio=2, feature_dim=8, position_scale=0.5)
CAUSAL = replace(SMALL, task_attention="causal")
VARIANTS = [
    CAUSAL,
    replace(CAUSAL, positions="all", pooling="max3_mlp"),
    replace(preset("compact_vit").encoder, task_attention="causal"),
]


def build(config: EncoderConfig, tasks: int) -> CtrlFormerEncoder:
    torch.manual_seed(0)
    encoder = CtrlFormerEncoder(config, (84, 84, 3 * EnvConfig().frame_stack))
    for _ in range(tasks):
        encoder.add_task()
    return encoder


def frames(count: int = 2) -> torch.Tensor:
    return torch.randint(0, 256, (count, 84, 84, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def encoded(encoder: CtrlFormerEncoder, task: int) -> Tokens:
    tokens: Tokens = encoder(frames(), task)
    return tokens


@pytest.mark.parametrize("config", VARIANTS)
def test_new_tokens_leave_the_old_outputs_as_they_were_to_the_last_bit(config: EncoderConfig) -> None:
    encoder = build(config, 2)
    before = [encoded(encoder, task) for task in range(2)]
    for _ in range(5):
        with torch.no_grad():
            encoder.add_task(copy_from=0)[0].add_(1.0)
    for task in range(2):
        after = encoded(encoder, task)
        assert torch.equal(after.policy, before[task].policy)
        assert torch.equal(after.contrastive, before[task].contrastive)


def test_in_joint_attention_a_new_token_is_felt() -> None:
    encoder = build(SMALL, 1)
    before = encoded(encoder, 0).policy
    encoder.add_task(copy_from=0)
    assert not torch.allclose(encoded(encoder, 0).policy, before)


def test_a_token_reads_the_tasks_before_it_and_none_after() -> None:
    encoder = build(CAUSAL, 3)
    encoder(frames(), 1).policy.sum().backward()
    gradients = [token.grad for token in encoder.policy_tokens]
    assert gradients[0] is not None
    assert gradients[0].any()
    assert gradients[1] is not None
    assert gradients[1].any()
    assert gradients[2] is None or not gradients[2].any()


def test_patches_do_not_read_special_tokens() -> None:
    """Then nothing a task's token becomes can reach another task by way of the patches."""
    torch.manual_seed(0)
    attention, special = Attention(16, 2), 3
    x = torch.randn(1, special + 5, 16)
    other = x.clone()
    other[:, :special] += 1
    before, after = (attention(z, z.shape[1], special)[:, special:] for z in (x, other))
    assert torch.equal(before, after)
    moved = x.clone()
    moved[:, -1] += 1  # a patch, which all may read
    changed = (attention(moved, x.shape[1], special) != attention(x, x.shape[1], special)).any(-1)
    assert changed.all()


def test_attention_of_the_special_tokens_is_the_masked_softmax() -> None:
    torch.manual_seed(0)
    attention, special = Attention(8, 2), 2
    x = torch.randn(3, special + 4, 8)
    q, k, v = (part.view(3, -1, 2, 4).transpose(1, 2) for part in attention.qkv(x).chunk(3, -1))
    scores = q @ k.transpose(-1, -2) / 4**0.5
    forbidden = torch.zeros(6, 6, dtype=torch.bool)
    forbidden[0, 1] = True  # the first special token does not see the second
    forbidden[special:, :special] = True  # patches see no special token
    mixed = scores.masked_fill(forbidden, float("-inf")).softmax(-1) @ v
    expected = attention.out(mixed.transpose(1, 2).reshape(3, 6, 8))
    torch.testing.assert_close(attention(x, 6, special), expected)
    torch.testing.assert_close(attention(x, special, special), expected[:, :special])


def flops(encoder: CtrlFormerEncoder, task: int) -> int:
    with FlopCounterMode(display=False) as counter:
        encoded(encoder, task)
    return counter.get_total_flops()


def test_a_tasks_features_cost_the_same_however_many_tasks_come_later() -> None:
    assert flops(build(CAUSAL, 1), 0) == flops(build(CAUSAL, 16), 0) < flops(build(CAUSAL, 16), 15)
    assert flops(build(SMALL, 1), 0) < flops(build(SMALL, 16), 0)  # joint: every pass carries every token
