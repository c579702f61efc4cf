"""What the peak's share is measured from: the operations of an update, counted."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from benchmarks.update_rows import TASK, agent_and_batch, count_flops, one_thread, with_agent
from ctrlformer.config import EncoderConfig

BATCH = 4


def test_attention_is_counted_forwards_and_backwards() -> None:
    q, k, v = torch.randn(3, 2, 3, 64, 16, requires_grad=True).unbind()
    product = 2 * 2 * 3 * 64 * 64 * 16
    assert count_flops(lambda: F.scaled_dot_product_attention(q, k, v)) == 2 * product
    assert count_flops(lambda: F.scaled_dot_product_attention(q, k, v).sum().backward()) == 7 * product


def test_products_in_place_are_counted() -> None:
    total, left, right = torch.zeros(3, 5), torch.ones(3, 4), torch.ones(4, 5)
    assert count_flops(lambda: total.addmm_(left, right)) == 2 * 3 * 4 * 5


def encoder_flops(config: EncoderConfig) -> tuple[int, int, int]:
    """Of one observation's forward pass: patches, attention, everything else (the last block: special tokens only)."""
    dim, attention = config.dim, 0
    rest = 2 * dim * config.feature_dim
    for tokens in (198, 100, 51):  # patches and two special tokens
        for depth in range(config.blocks_per_stage):
            last = tokens == 51 and depth == config.blocks_per_stage - 1
            queries = 2 if last else tokens
            attention += 4 * queries * tokens * dim
            rest += 2 * dim * dim * (2 * queries + 2 * tokens + 2 * queries * config.mlp_ratio)
    return 2 * 196 * config.patch_size**2 * 9 * dim, attention, rest


@pytest.mark.parametrize("threads", [1, 2])
def test_an_update_of_the_paper_counts_what_its_passes_take(threads: int) -> None:
    config = with_agent("paper", batch_size=BATCH)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with one_thread():
            agent, batch = agent_and_batch(config)
        assert torch.get_num_threads() == threads
        counted = count_flops(lambda: agent.update(TASK, batch))
    finally:
        torch.set_num_threads(before)
    patches, attention, rest = encoder_flops(config.encoder)
    forward = patches + attention + rest
    with_gradient = 2 * patches + 3.5 * attention + 3 * rest  # pixels get no gradient; attention is partly redone
    encoder = BATCH * (2 * with_gradient + 5 * forward)  # two views of s; two of s' twice, one of s for BYOL
    assert encoder < counted < 1.01 * encoder  # the heads are small beside it
