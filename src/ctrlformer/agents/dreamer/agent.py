"""Dreamer (Hafner et al. 2019, "Dream to Control"): a world model learns from sequences of frames, and each task's
actor and value model learn in what it imagines.

The world model is shared and goes from task to task; reward model, value model, actor and the meaning of actions are a
task's own. Gradients of imagined returns pass through the latent dynamics to the actor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ctrlformer.agents.base import TransferSource
from ctrlformer.agents.dreamer import losses
from ctrlformer.agents.dreamer.heads import DreamerHeads
from ctrlformer.agents.dreamer.rssm import State
from ctrlformer.agents.dreamer.world_model import WorldModel
from ctrlformer.agents.learner import Learner
from ctrlformer.agents.optimiser import Optimiser
from ctrlformer.config import Config, TransferConfig
from ctrlformer.config.stored_frames import stored_frame
from ctrlformer.encoders import FrameReader
from ctrlformer.encoders.frames import SmallPictureReader
from ctrlformer.nn.seeding import reproducible
from ctrlformer.replay import Replay, Sequences
from ctrlformer.replay.rehearsal import Outputs, Rehearsal
from ctrlformer.replay.stack_kernel import CHANNELS

SHARE = 256  # frames that `outputs` looks at together
REMEDY = "try lower --dreamer.model-learning-rate, --dreamer.actor-learning-rate and --dreamer.value-learning-rate"


class DreamerAgent(Learner[DreamerHeads]):
    """Learns one task at a time; one world model, and heads for every task it was given."""

    def __init__(self, config: Config, device: torch.device | str = "cpu", seed: int = 0) -> None:
        super().__init__(config, device, seed)
        self.settings = config.dreamer
        self.frame_size = stored_frame(config).size
        self.reader: FrameReader = SmallPictureReader(self.frame_size)
        with reproducible(seed):
            self.world = WorldModel(self.settings, self.frame_size).to(self.device)
        self.model_optimiser, self.actor_optimiser, self.value_optimiser = (
            Optimiser(name, config.agent, self.device, REMEDY) for name in ("model", "actor", "value")
        )
        self.model_optimiser.add(self.world.parameters(), 1.0, 0.0)

    # Tasks

    def add_task(
        self, task: str, action_dim: int, transfer: TransferConfig | None = None, source: TransferSource | None = None
    ) -> None:
        """New heads; nothing old is replaced.

        `transfer` begins a later stage: the world model learns on at the rate it says, or freezes; actions mean at
        first what they mean in the source, if it has as many, and heads may be copied from it too.
        """
        with reproducible(self._seed + 1 + len(self.tasks)):
            heads = DreamerHeads(self.settings, self.world.latent.features, action_dim).to(self.device)
        if transfer:
            self.world.requires_grad_(transfer.protect != "freeze")
            self.model_optimiser.rescale(self.world.parameters(), transfer.encoder_lr_scale)
            self._warmup_updates = transfer.warmup_updates
            old = self._source_heads(action_dim, source)
            if old:
                heads.copy_actions_from(old)
            if old and (source.heads if source else transfer.heads == "copy"):
                heads.copy_from(old)
        self._append(task, heads)
        self.model_optimiser.add([*heads.action_map.parameters(), *heads.reward.parameters()], 1.0, 0.0)
        self.actor_optimiser.add(heads.actor.parameters(), 1.0, 0.0)
        self.value_optimiser.add(heads.value.parameters(), 1.0, 0.0)

    def _source_heads(self, action_dim: int, source: TransferSource | None) -> DreamerHeads | None:
        """The source's heads if they have as many actions; without a source those of the newest task that has."""
        tasks = self.tasks if source is None else [source.task] if source.task else []
        fitting = [self._heads(task) for task in tasks if self.action_dims[task] == action_dim]
        return fitting[-1] if fitting else None

    def policy(self, task: str, explore: bool, memory: Tensor | None = None) -> LatentPolicy:
        """For one episode: it remembers latent state and last action."""
        return LatentPolicy(self, self._heads(task), explore, memory)

    @torch.no_grad()
    def outputs(self, task: str, observations: Tensor) -> Outputs:
        """What the task's policy makes of the newest frames of observations (N, S, S, C), each an episode's first."""
        heads, parts = self._heads(task), []
        for share in torch.split(observations, SHARE):
            frames = share[..., -CHANNELS:].to(self.device)
            nothing = heads.action_map(torch.zeros(len(frames), heads.action_dim, device=self.device))
            features = self.world.see(frames, self.world.latent.start(len(frames)), nothing).features
            before_tanh = heads.actor(features)
            parts.append(Outputs(features, torch.tanh(before_tanh.mean), before_tanh.std))
        return Outputs(*map(torch.cat, zip(*parts, strict=True)))

    # Learning

    def draw(self, replay: Replay, rng: np.random.Generator) -> Sequences:
        """The stretches of episodes that one update learns from."""
        return replay.sequences(rng, self.config.agent.batch_size, self.settings.sequence_length)

    def update(
        self, task: str, batch: Sequences, progress: float = 0.0, rehearsal: Rehearsal | None = None
    ) -> dict[str, Tensor]:
        """One gradient step of world model, actor and value model; returns the figures to log, still on the device."""
        heads = self._heads(task)
        frames, action, reward = (x.to(self.device, non_blocking=True) for x in batch)
        self._check_rewards(reward)
        states, figures = self._update_world(heads, frames, action, reward)
        figures |= self._update_behaviour(task, states)
        self._count_update(task)
        return figures | {"batch_reward": reward.mean()}

    def _update_world(
        self, heads: DreamerHeads, frames: Tensor, action: Tensor, reward: Tensor
    ) -> tuple[State, dict[str, Tensor]]:
        """World model and reward model; gives the states (B L, ...) that the sequences went through, detached."""
        noise = self._noise(*frames.shape[:2], self.settings.stochastic)
        total, states, figures = self.world.loss(heads, frames, action, reward, noise)
        self.model_optimiser.set_rate(self.settings.model_learning_rate)
        figures["gradient_norm"] = self.model_optimiser.step(total, self.config.agent.gradient_clip)
        return State(*(part.detach().flatten(0, 1) for part in states)), figures

    def _update_behaviour(self, task: str, start: State) -> dict[str, Tensor]:
        """Actor and value model, in what is imagined from every state of the batch; the value model alone in a
        warm-up."""
        s, discount, clip = self.settings, self.config.agent.discount, self.config.agent.gradient_clip
        heads, figures = self._heads(task), {}
        with _held(self.world, heads.action_map, heads.reward, heads.value):  # the actor's gradient passes through them
            features = self._imagine(heads, start)  # (H, N, F)
            reward, value = heads.reward(features).squeeze(-1), heads.value(features).squeeze(-1)  # (H, N)
            returns = losses.lambda_returns(s.reward_scale * reward, value, discount, s.return_mixing)  # (H - 1, N)
            actor_loss = losses.actor_loss(returns, discount)
            if not self._warms_up(task):
                self.actor_optimiser.set_rate(s.actor_learning_rate)
                figures["actor_gradient_norm"] = self.actor_optimiser.step(actor_loss, clip)
        learnt = heads.value(features[:-1].detach()).squeeze(-1)
        value_loss = losses.value_loss(learnt, returns, discount)
        self.value_optimiser.set_rate(self._rate_share(task) * s.value_learning_rate)
        self.value_optimiser.step(value_loss, clip)
        return figures | {
            "actor_loss": actor_loss.detach(),
            "value_loss": value_loss.detach(),
            "value": value.detach().mean(),
            "imagined_reward": reward.detach().mean(),
        }

    def _imagine(self, heads: DreamerHeads, state: State) -> Tensor:
        """Features (H, N, F) of the states that the actor leads to. It looks at states but is not blamed for them:
        its gradient comes through its actions alone."""
        imagined = []
        for _ in range(self.settings.horizon):
            count = len(state.deterministic)
            action = heads.actor.sample(state.features.detach(), self._noise(count, heads.action_dim))
            noise = self._noise(count, self.settings.stochastic)
            state = self.world.latent.imagine(state, heads.action_map(action), noise)
            imagined.append(state.features)
        return torch.stack(imagined)

    # State

    @property
    def _modules(self) -> dict[str, nn.Module]:
        return {"world": self.world, "heads": self.heads}

    @property
    def _optimisers(self) -> tuple[Optimiser, Optimiser, Optimiser]:
        return self.model_optimiser, self.actor_optimiser, self.value_optimiser


class LatentPolicy:
    """Keeps the latent state of one episode. Exploring, it draws state and action and adds noise; else it takes means,
    so that an evaluation repeats itself.

    Random actions before it is first asked are unknown to it: it begins in the middle of an episode as the sequences of
    a batch do.
    """

    def __init__(self, agent: DreamerAgent, heads: DreamerHeads, explore: bool, memory: Tensor | None) -> None:
        self._agent, self._heads, self._explore = agent, heads, explore
        self._state = agent.world.latent.start(1)
        self._action = torch.zeros(1, heads.action_dim, device=agent.device)
        if memory is not None:
            sizes = [part.shape[-1] for part in (*self._state, self._action)]
            if memory.shape != (1, sum(sizes)) or memory.dtype != torch.float32:
                raise ValueError(f"a memory of {memory.dtype} {tuple(memory.shape)}, not (1, {sum(sizes)})")
            *state, self._action = torch.split(memory.to(agent.device), sizes, -1)
            self._state = State(*state)

    @property
    def memory(self) -> Tensor:
        """Latent state and last action, (1, D + S + A)."""
        return torch.cat([*self._state, self._action], -1)

    @torch.no_grad()
    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        world, actor, noise = self._agent.world, self._heads.actor, self._agent._noise
        frame = self._agent.reader.stack(pixels[..., -CHANNELS:])[None].to(self._agent.device)
        drawn = noise(1, self._agent.settings.stochastic) if self._explore else None
        self._state = world.see(frame, self._state, self._heads.action_map(self._action), drawn)
        self._action = actor.mean_action(self._state.features)
        if self._explore:
            action = actor.sample(self._state.features, noise(*self._action.shape))
            extra = self._agent.settings.exploration_noise * noise(*action.shape)
            self._action = (action + extra).clamp(-1, 1)
        numbers: NDArray[np.float32] = self._action[0].cpu().numpy().copy()
        return numbers


@contextmanager
def _held(*modules: nn.Module) -> Iterator[None]:
    """Inside, these modules pass gradients on and take none."""
    learning = [p for module in modules for p in module.parameters() if p.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
