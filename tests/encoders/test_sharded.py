from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ctrlformer.config.presets import TINY
from ctrlformer.encoders import Encoder, make_encoder
from ctrlformer.encoders.sharded import ShardedPass


def encoder_of(kind: str, init: str = "xavier") -> Encoder:
    torch.manual_seed(0)
    encoder = make_encoder(replace(TINY.encoder, kind=kind, init=init), TINY.env)  # type: ignore[arg-type]
    for task in range(2):
        encoder.add_task(task - 1 if task else None)
    return encoder


def pixels(batch: int) -> torch.Tensor:
    return torch.randint(0, 256, (batch, 84, 84, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def gradients(encoder: Encoder, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    encoder.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", ["ctrlformer", "cnn"])
@pytest.mark.parametrize(("batch", "threads"), [(8, 2), (7, 3), (2, 4), (1, 2)])
def test_tokens_and_gradients_are_those_of_one_thread(kind: str, batch: int, threads: int) -> None:
    encoder = encoder_of(kind)
    sharded = ShardedPass(encoder, threads)
    results = []
    for encode in (encoder, sharded):
        tokens = encode(pixels(batch), 1)
        results.append((tokens, gradients(encoder, tokens.policy[:, 1].square().sum() + tokens.contrastive.sum())))
    (plain, expected), (tokens, found) = results
    torch.testing.assert_close(tokens.policy, plain.policy)
    torch.testing.assert_close(tokens.contrastive, plain.contrastive)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-4, msg=name)


def test_without_gradients_none_are_kept() -> None:
    with torch.no_grad():
        tokens = ShardedPass(encoder_of("ctrlformer"), 2)(pixels(4), 0)
    assert not tokens.policy.requires_grad


def test_frozen_parameters_and_unread_tokens_get_no_gradient() -> None:
    encoder = encoder_of("ctrlformer")
    assert not isinstance(encoder.positions, torch.nn.Module)
    encoder.positions.requires_grad_(False)
    found = gradients(encoder, ShardedPass(encoder, 2)(pixels(4), 0).policy.sum())
    assert "positions" not in found
    assert "embed.linear.weight" in found


def test_the_same_numbers_every_time() -> None:
    encoder = encoder_of("ctrlformer")
    sharded = ShardedPass(encoder, 2)
    runs = [gradients(encoder, sharded(pixels(6), 0).policy.square().sum()) for _ in range(3)]
    for later in runs[1:]:
        assert all(torch.equal(gradient, later[name]) for name, gradient in runs[0].items())


def test_the_callers_threads_stay_as_they_are() -> None:
    before = torch.get_num_threads()
    ShardedPass(encoder_of("cnn"), 3)(pixels(3), 0)
    assert torch.get_num_threads() == before


def test_errors_reach_the_caller() -> None:
    with pytest.raises(IndexError):
        ShardedPass(encoder_of("ctrlformer"), 2)(pixels(4), 5)


def test_bf16_is_close_and_comes_out_as_fp32() -> None:
    encoder = encoder_of("ctrlformer")
    with torch.no_grad():
        precise = encoder(pixels(4), 0)
        encoder.bf16 = True
        for encode in (encoder, ShardedPass(encoder, 2)):
            rough = encode(pixels(4), 0)
            assert rough.policy.dtype == torch.float32
            assert not torch.equal(rough.policy, precise.policy)
            torch.testing.assert_close(rough.policy, precise.policy, rtol=0.1, atol=0.05)
