"""The latent model step by step against itself in one go, and what may depend on what."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ctrlformer.agents.dreamer.rssm import LatentModel, Observed, State
from ctrlformer.config.dreamer import DreamerConfig

CONFIG = DreamerConfig(deterministic=6, stochastic=3, hidden=5)
B, T, E = 2, 4, 7


@pytest.fixture
def model() -> LatentModel:
    torch.manual_seed(0)
    return LatentModel(CONFIG, E)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    embedding, actions, noise = (torch.randn(B, T, size, generator=generator) for size in (E, 5, 3))
    return embedding, actions, noise


def test_observing_is_carrying_on_and_seeing_step_by_step(model: LatentModel) -> None:
    embedding, actions, noise = inputs()
    observed: Observed = model.observe(embedding, actions, noise)
    state = model.start(B)
    for t in range(T):
        deterministic = model.carry_on(state, actions[:, t])
        prior = model.prior(deterministic)
        posterior = model.posterior(deterministic, model.embedding_in(embedding[:, t]))
        state = State(deterministic, posterior.sample(noise[:, t]))
        along = (*observed.states, *observed.prior, *observed.posterior)
        for whole, step in zip(along, (*state, *prior, *posterior), strict=True):
            torch.testing.assert_close(whole[:, t], step)
    assert observed.states.features.shape == (B, T, model.features) == (B, T, 9)


def test_the_prior_does_not_see_its_frame_and_nothing_sees_the_future(model: LatentModel) -> None:
    embedding, actions, noise = inputs()
    before = model.observe(embedding, actions, noise)
    changed = embedding.clone()
    changed[:, 2] += 1
    after = model.observe(changed, actions, noise)
    assert torch.equal(before.prior.mean[:, :3], after.prior.mean[:, :3])
    assert torch.equal(before.posterior.mean[:, :2], after.posterior.mean[:, :2])
    assert not torch.equal(before.posterior.mean[:, 2], after.posterior.mean[:, 2])
    assert not torch.equal(before.prior.mean[:, 3], after.prior.mean[:, 3])


def test_imagining_draws_from_the_prior_and_depends_on_the_action(model: LatentModel) -> None:
    start, noise = model.start(B), torch.zeros(B, 3)
    still, moved = (model.imagine(start, torch.full((B, 5), action), noise) for action in (0.0, 1.0))
    assert torch.equal(still.stochastic, model.prior(still.deterministic).mean)
    assert not torch.equal(still.deterministic, moved.deterministic)


def test_deviations_stay_above_a_tenth(model: LatentModel) -> None:
    observed = model.observe(*(100 * x for x in inputs()))
    assert bool((observed.prior.std >= 0.1).all())
    assert bool((observed.posterior.std >= 0.1).all())
