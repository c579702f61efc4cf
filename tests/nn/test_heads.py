"""Actor, critic and projector."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from ctrlformer.config import AgentConfig
from ctrlformer.nn.heads import Actor, Critic, mlp, projector, tanh_gaussian_log_prob

SMALL = AgentConfig(head_width=16)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), log_std=st.floats(-3, 1), mean=st.floats(-2, 2))
def test_log_probability_equals_torch_distributions(seed: int, log_std: float, mean: float) -> None:
    noise = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    spread = torch.full_like(noise, log_std)
    u = mean + spread.exp() * noise
    oracle = TransformedDistribution(Normal(torch.full_like(noise, mean), spread.exp()), [TanhTransform(cache_size=1)])
    expected = oracle.log_prob(oracle.transforms[0](u)).sum(-1)
    torch.testing.assert_close(tanh_gaussian_log_prob(noise, spread, u), expected)


def test_log_probability_stays_finite_where_tanh_saturates() -> None:
    noise, log_std = torch.zeros(1, 1), torch.zeros(1, 1)
    for u in (-100.0, 100.0):
        assert torch.isfinite(tanh_gaussian_log_prob(noise, log_std, torch.full((1, 1), u))).all()


def test_actor_keeps_its_bounds() -> None:
    torch.manual_seed(0)
    actor = Actor(6, 2, SMALL)
    features = 100 * torch.randn(64, 6)
    mean, log_std = actor(features)
    assert mean.shape == log_std.shape == (64, 2)
    assert float(log_std.min()) >= SMALL.log_std_min
    assert float(log_std.max()) <= SMALL.log_std_max
    sampled = actor.sample(features, torch.randn(64, 2))
    assert sampled.action.abs().max() <= 1
    assert sampled.log_prob.shape == (64,)
    torch.testing.assert_close(actor.mean_action(features), torch.tanh(mean))


def test_critic_returns_two_different_vectors() -> None:
    torch.manual_seed(0)
    q1, q2 = Critic(6, 2, SMALL)(torch.randn(5, 6), torch.randn(5, 2))
    assert q1.shape == q2.shape == (5,)
    assert not torch.equal(q1, q2)


def test_mlp_has_the_layers_asked_for() -> None:
    plain = mlp(5, 7, 2, layers=3)
    assert [type(part) for part in plain] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    normed = mlp(5, 7, 2, layers=2, norm=True)
    assert [type(part) for part in normed] == [nn.Linear, nn.LayerNorm, nn.ReLU, nn.Linear]


def test_projector_as_in_the_appendix() -> None:
    kinds = [type(part) for part in projector(192, 384, 96)]
    assert kinds == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert isinstance(projector(192, 384, 96, ends_in_norm=True)[-1], nn.BatchNorm1d)
    assert projector(192, 384, 96)(torch.randn(4, 192)).shape == (4, 96)
