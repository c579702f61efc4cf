"""The latent model (RSSM): a state has a part that a GRU carries on and a Gaussian part that is drawn anew each step.

The prior predicts the Gaussian part from the past alone; the posterior has seen the frame as well. Learning holds the
two together, so that the prior can imagine what no frame shows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctrlformer.config.dreamer import DreamerConfig

SMALLEST_STD = 0.1  # of a latent state's Gaussian: keeps divergences finite


class Gaussian(NamedTuple):
    """Independent normal distributions."""

    mean: Tensor  # (..., S)
    std: Tensor  # (..., S)

    def sample(self, noise: Tensor) -> Tensor:
        """Reparameterised: `noise` is standard normal, drawn by the caller's generator."""
        return self.mean + self.std * noise


class State(NamedTuple):
    deterministic: Tensor  # (..., D)
    stochastic: Tensor  # (..., S)

    @property
    def features(self) -> Tensor:
        """(..., D + S): what decoder and heads see of a state."""
        return torch.cat(self, dim=-1)


class Observed(NamedTuple):
    """What the latent model makes of sequences of T frames."""

    states: State  # (B, T, ...), drawn from the posterior
    prior: Gaussian  # (B, T, S)
    posterior: Gaussian  # (B, T, S)


class LatentModel(nn.Module):
    """Latent dynamics of all tasks. Actions come as `hidden` numbers that the task's own linear map made of them:
    exactly a hidden layer on (state, action), with columns for the actions that belong to the task."""

    def __init__(self, config: DreamerConfig, embedding: int) -> None:
        super().__init__()
        deterministic, stochastic, hidden = config.deterministic, config.stochastic, config.hidden
        self._sizes = deterministic, stochastic
        self.features = deterministic + stochastic
        self.state_in = nn.Linear(stochastic, hidden)
        self.recurrent = nn.GRUCell(hidden, deterministic)
        self.prior_in = nn.Linear(deterministic, hidden)
        self.prior_out = nn.Linear(hidden, 2 * stochastic)
        self.embedding_in = nn.Linear(embedding, hidden)
        self.posterior_in = nn.Linear(deterministic, hidden, bias=False)
        self.posterior_out = nn.Linear(hidden, 2 * stochastic)

    def start(self, batch: int) -> State:
        """Before anything was seen."""
        zeros = self.state_in.weight.new_zeros
        return State(zeros(batch, self._sizes[0]), zeros(batch, self._sizes[1]))

    def carry_on(self, state: State, action: Tensor) -> Tensor:
        """The next deterministic part, (B, D), after an action mapped to (B, hidden)."""
        moved: Tensor = self.recurrent(F.elu(self.state_in(state.stochastic) + action), state.deterministic)
        return moved

    def prior(self, deterministic: Tensor) -> Gaussian:
        """What is expected, (..., D) to (..., S)."""
        return _gaussian(self.prior_out(F.elu(self.prior_in(deterministic))))

    def posterior(self, deterministic: Tensor, embedded: Tensor) -> Gaussian:
        """What a frame shows; `embedded` is `embedding_in` of its embedding, (..., hidden)."""
        return _gaussian(self.posterior_out(F.elu(self.posterior_in(deterministic) + embedded)))

    def imagine(self, state: State, action: Tensor, noise: Tensor) -> State:
        """A step without a frame: the stochastic part is drawn from the prior with `noise` (B, S)."""
        deterministic = self.carry_on(state, action)
        return State(deterministic, self.prior(deterministic).sample(noise))

    def observe(self, embedding: Tensor, actions: Tensor, noise: Tensor) -> Observed:
        """Sequences from the start on: embeddings (B, T, E) of their frames, the mapped actions (B, T, hidden) that
        led to them, `noise` (B, T, S).

        Only what depends on the step before is computed step by step.
        """
        embedded = self.embedding_in(embedding)  # (B, T, hidden)
        state, states, posteriors = self.start(len(embedding)), [], []
        for t in range(embedding.shape[1]):
            deterministic = self.carry_on(state, actions[:, t])
            seen = self.posterior(deterministic, embedded[:, t])
            state = State(deterministic, seen.sample(noise[:, t]))
            states.append(state)
            posteriors.append(seen)
        along = State(*(torch.stack(parts, 1) for parts in zip(*states, strict=True)))
        posterior = Gaussian(*(torch.stack(parts, 1) for parts in zip(*posteriors, strict=True)))
        return Observed(along, self.prior(along.deterministic), posterior)


def _gaussian(raw: Tensor) -> Gaussian:
    mean, raw_std = raw.chunk(2, dim=-1)
    return Gaussian(mean, F.softplus(raw_std) + SMALLEST_STD)
