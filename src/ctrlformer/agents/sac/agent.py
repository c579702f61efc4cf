"""SAC with DrQ's regularisation and BYOL beside it, one set of heads per task; every part a switch.

One update, few passes: an encoder pass yields the task's policy token and the contrastive token at once, so an
update needs the online encoder with gradient on the views of s, without on the views of s', the TD targets' encoder on
the views of s', and BYOL's on one view of s. The actor reuses the critic pass's features, detached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ctrlformer.agents.base import Policy, TransferSource
from ctrlformer.agents.learner import Learner
from ctrlformer.agents.optimiser import Optimiser, scheduled_rate
from ctrlformer.agents.sac import losses
from ctrlformer.agents.sac.diagnostics import DeadUnits, effective_rank
from ctrlformer.agents.sac.heads import Contrast, TaskHeads
from ctrlformer.agents.sac.policy import PinkNoise, SacPolicy
from ctrlformer.agents.sac.protection import Gaussian, Protection
from ctrlformer.agents.sac.recent import HeadBatch, RecentBatches
from ctrlformer.config import Config, TransferConfig
from ctrlformer.encoders import Encoder, Tokens, make_encoder, make_frame_reader
from ctrlformer.encoders.sharded import ShardedPass
from ctrlformer.envs.tasks import action_repeat
from ctrlformer.nn.ema import ema_update, frozen_copy
from ctrlformer.nn.heads import Actor, Predictor
from ctrlformer.nn.seeding import reproducible
from ctrlformer.nn.transformer import initialise
from ctrlformer.replay import Batch, Replay
from ctrlformer.replay.rehearsal import Outputs, Rehearsal, RehearsalBuffer
from ctrlformer.system.device import choose_precision

DIAGNOSED_STEPS = 128  # of an episode
RECENT = "recent"  # group of a checkpoint
STATISTICS_SETTLED, STATISTICS_EVERY = 512, 8  # updates: at first all of a task's batches, then every 8th

_Pass = Callable[[Tensor, int], Tokens]  # an encoder's forward pass


class Features(NamedTuple):
    """One task's features of a batch, as the losses need them."""

    now: Tensor  # (V, B, F) with gradient
    next_policy: Tensor  # (W, B, F) for choosing the next action
    next_value: Tensor  # (W, B, F) for valuing it
    contrastive: Tensor | None  # (B, D) with gradient
    contrastive_target: Tensor | None  # (B, D)


class SacAgent(Learner[TaskHeads]):
    """Learns one task at a time; keeps a token and heads for every task it was given."""

    def __init__(
        self, config: Config, device: torch.device | str = "cpu", seed: int = 0, compiled: bool = False
    ) -> None:
        super().__init__(config, device, seed)
        self.settings = config.agent
        self.frame_size = config.env.image_size
        self.reader = make_frame_reader(config.encoder, self.device)
        with reproducible(seed):
            self.encoder: Encoder = make_encoder(config.encoder, config.env).to(self.device)
            self.encoder.bf16 = choose_precision(config.training.precision, self.device) == "bf16"
            self.contrast = Contrast(self.settings, self.encoder.contrastive_dim, self.encoder.projection)
            if config.encoder.init == "orthogonal":
                initialise(self.contrast, "orthogonal")
            self.contrast.to(self.device)
        self._make_targets()
        self._pass = self._fast(self.encoder, compiled)
        self._target_pass = self._fast(self.target_encoder, compiled) if self._ema_targets else self._pass
        self._byol_pass = self._fast(self.byol_encoder, compiled) if self._ema_contrast else self._pass
        self._transfer: TransferConfig | None = None  # of the stage under way; none in the first
        self._fixed_tokens: list[nn.Parameter] = []
        self._recent: dict[str, RecentBatches] = {}  # of the tasks being learned
        self._protection = Protection(self.encoder, config.transfer)
        self._make_optimisers()

    def _make_targets(self) -> None:
        """Two EMA copies, each at its own rate: BYOL's stands still at a stage's end, when TD targets must not."""
        s = self.settings
        self._ema_targets = s.target_encoder == "ema"
        self._ema_contrast = s.contrastive and s.contrastive_target == "ema"
        self.target_encoder = frozen_copy(self.encoder) if self._ema_targets else self.encoder
        self.byol_encoder = frozen_copy(self.encoder) if self._ema_contrast else self.encoder
        self.byol_projector = frozen_copy(self.contrast.project) if self._ema_contrast else self.contrast.project

    def _fast(self, encoder: Encoder, compiled: bool) -> _Pass:
        """How updates call the encoder. Acting calls it as it is: a batch of one gains nothing from either way."""
        if compiled:
            return torch.compile(encoder)
        threads = torch.get_num_threads()
        return ShardedPass(encoder, threads) if self.device.type == "cpu" and threads > 1 else encoder

    @property
    def views(self) -> tuple[int, int]:
        """How many views of s and of s' `update` wants in its batch."""
        two = self.settings.q_regularisation
        return (2 if two or self._contrasts else 1, 2 if two else 1)

    @property
    def _contrasts(self) -> bool:
        """Whether BYOL runs: a frozen encoder has nothing to learn from it."""
        return self.settings.contrastive and not self._frozen

    @property
    def _frozen(self) -> bool:
        return self._transfer is not None and self._transfer.protect == "freeze"

    # Tasks

    def add_task(
        self, task: str, action_dim: int, transfer: TransferConfig | None = None, source: TransferSource | None = None
    ) -> None:
        """One more policy token, actor, critics and temperature; nothing old is replaced.

        `transfer` begins a later stage: the encoder slows down or freezes, token and pixel statistics start as the
        copies of the source's, and heads may be copied from it too. Without it the token is random: the first stage.
        """
        if transfer:
            self._begin_transfer(transfer)
            source = source or self._previous(action_dim, transfer)
        copied = self._index(source.task) if source and source.task is not None else None
        with reproducible(self._seed + 1 + len(self.tasks)):
            tokens = self.encoder.add_task(copied)
            heads = TaskHeads(self.settings, self.encoder.features, action_dim, self.encoder.projection)
            heads.to(self.device)
            for copy in self._target_encoders:
                for token, online in zip(copy.add_task(copied), tokens, strict=True):
                    token.requires_grad_(False).copy_(online.detach())
        old = None if copied is None else self._all_heads[copied]
        if source and source.heads and old and old.action_dim == action_dim:
            heads.copy_from(old)
        if transfer and transfer.temperature is not None:
            heads.fix_temperature(transfer.temperature)
        self._append(task, heads)
        self._protection.add_task()
        if transfer and not transfer.train_token:
            self._fixed_tokens += tokens
            self._hold_fixed_tokens()
        elif tokens:
            self.critic_optimiser.add(tokens, self.settings.encoder_lr_scale, self._plain_decay)
        self.critic_optimiser.add(heads.critic.parameters(), 1.0, self._plain_decay)
        if heads.predictor is not None:
            self.critic_optimiser.add(heads.predictor.parameters(), 1.0, self._plain_decay)
        self.actor_optimiser.add(heads.actor.parameters(), 1.0, self._plain_decay)
        self.temperature_optimiser.add([heads.log_temperature], 1.0, self._plain_decay)

    def _begin_transfer(self, transfer: TransferConfig) -> None:
        """Slow down or freeze what the encoder has learned; a new token, added after this, learns at full rate."""
        self._transfer, self._warmup_updates = transfer, transfer.warmup_updates
        self._recent.clear()
        self.encoder.requires_grad_(not self._frozen)
        self._hold_fixed_tokens()
        scale = self.settings.encoder_lr_scale * transfer.encoder_lr_scale
        self.critic_optimiser.rescale(self.encoder.parameters(), scale)
        self._protection.begin_stage(transfer)

    def protect(self, finished: Sequence[RehearsalBuffer]) -> None:
        """EWC weighs the encoder's weights by what earlier tasks' policies make of their rehearsal buffers."""
        self._protection.weigh((self._gaussian(old.task), old.observations) for old in finished)

    def _gaussian(self, task: str) -> Gaussian:
        index, actor = self._index(task), self._heads(task).actor
        with_past = self._heads(task).with_past
        return lambda observations: actor(with_past(self.encoder(observations.to(self.device), index).policy))

    def _hold_fixed_tokens(self) -> None:
        for token in self._fixed_tokens:
            token.requires_grad_(False)

    def _previous(self, action_dim: int, transfer: TransferConfig) -> TransferSource:
        """If heads are copied, the newest task with as many actions; else, or if there is none, the previous one, whose
        heads then do not fit."""
        fitting = [task for task, size in self.action_dims.items() if size == action_dim]
        copies = transfer.heads == "copy"
        return TransferSource(fitting[-1] if fitting and copies else self.tasks[-1], heads=copies)

    def policy(self, task: str, explore: bool, memory: Tensor | None = None) -> Policy:
        """From one observation (H, W, C) to one action (A,): sampled, or the mean."""
        count, action_dim = self.settings.past_actions, self._heads(task).action_dim
        if memory is not None and (memory.ndim != 2 or memory[:count].shape != (count, action_dim)):
            raise ValueError(f"a policy's memory is {tuple(memory.shape)}: not of {count} times {action_dim} actions")
        past = torch.zeros(count, action_dim) if memory is None else memory[:count].clone()
        past = past.to(self.device)
        if not explore:
            return SacPolicy(self, task, past)
        if self.settings.exploration == "pink":
            rest = None if memory is None else memory[count:]
            return SacPolicy(self, task, past, PinkNoise(self._noise, action_dim, rest))
        return SacPolicy(self, task, past, lambda: self._noise(1, action_dim))

    @torch.no_grad()
    def features(self, task: str, pixels: NDArray[np.uint8], past: Tensor | None = None) -> Tensor:
        """What the task's policy reads of one observation (H, W, C) after the `past` actions (1, K * A): (1, F)."""
        index = self._index(task)
        with self._protection.weights_of(index):
            tokens: Tokens = self.encoder(self.reader.stack(pixels)[None].to(self.device), index)
        return self._heads(task).with_past(tokens.policy, past)

    def actor(self, task: str) -> Actor:
        return self._heads(task).actor

    def value(self, task: str, features: Tensor, past: Tensor | None = None) -> Tensor:
        """What the task's critics think of its mean action, the lower of the two: the encoder's (B, F) to (B,)."""
        heads = self._heads(task)
        features = heads.with_past(features, past)
        return torch.minimum(*heads.critic(features, heads.actor.mean_action(features)))

    @torch.no_grad()
    def outputs(self, task: str, observations: Tensor) -> Outputs:
        """What the task's policy makes of observations of the replay, (N, H, W, C), as it is now."""
        shares = torch.split(observations, self.settings.batch_size)
        with self._protection.weights_of(self._index(task)):
            parts = [self._outputs(task, share.to(self.device)) for share in shares]
        return Outputs(*map(torch.cat, zip(*parts, strict=True)))

    def _outputs(self, task: str, observations: Tensor) -> Outputs:
        heads = self._heads(task)
        features = self._pass(observations, self._index(task)).policy
        read = heads.with_past(features)  # an observation by itself has no past
        mean, log_std = heads.actor(read)
        projected = features if self.encoder.projection is None else heads.actor.project(read)
        return Outputs(projected, torch.tanh(mean), log_std.exp())

    @torch.no_grad()
    def diagnose(self, task: str, replay: Replay) -> dict[str, float]:
        """What tells a training that dies: values against returns, rank of features and dead units in the newest
        episode. Where that was cut by a time limit, the agent's own value goes on."""
        heads, dead = self._heads(task), DeadUnits()
        s = self.settings
        batch = replay.newest_episode(DIAGNOSED_STEPS, s.discount, s.past_actions).to(self.device)
        with dead.watch((self.encoder, heads.actor, heads.critic)):
            features = self.encoder(batch.observation[0], self._index(task)).policy  # (B, F)
            read = heads.with_past(features, batch.past)
            values = torch.minimum(*heads.critic(read, batch.action))
            heads.actor(read)
        end = self.encoder(batch.next_observation[0, :1], self._index(task)).policy
        last = self.value(task, end, None if batch.next_past is None else batch.next_past[:1])  # (1,)
        returns = self._in_critics_unit(task, batch.reward) + batch.discount * last
        return {
            "episode_q": float(values.mean()),
            "monte_carlo": float(returns.mean()),
            "effective_rank": float(effective_rank(features)),
            "dead_units": dead.share,
        }

    # Learning

    def draw(self, replay: Replay, rng: np.random.Generator) -> Batch:
        """The steps that one update learns from, under as many shifts as it wants."""
        s, (views, next_views) = self.settings, self.views
        return replay.sample(
            rng,
            s.batch_size,
            n_step=s.n_step,
            discount=s.discount,
            shift=s.shift,
            views=views,
            next_views=next_views,
            same_shift=s.same_shift,
            past=s.past_actions,
        )

    def update(
        self, task: str, batch: Batch, progress: float = 0.0, rehearsal: Rehearsal | None = None
    ) -> dict[str, Tensor]:
        """One gradient step on every loss; returns the figures to log, still on the device: reading them there
        and then would make the processor wait. `progress` is the stage's, 0 to 1. With `rehearsal` the encoder is
        held to an old task's outputs in the same step."""
        heads = self._heads(task)
        self._set_learning_rate(progress, self._rate_share(task))
        warms_up = self._warms_up(task)
        self._protection.prune_at(progress)
        with torch.set_grad_enabled(not warms_up):  # critics alone: no token and no encoder that moves the policy
            batch = batch.to(self.device)
            reward = self._in_critics_unit(task, batch.reward)
            features = self._read(task, batch)
        metrics = self._update_critic(
            heads, features, batch.action, reward, batch.discount, None if warms_up else rehearsal
        )
        if self.task_updates[task] % self.settings.actor_every == 0 and not warms_up:
            metrics |= self._update_actor(heads, features.now[0].detach())
        self._count_update(task)
        self._update_targets(task, progress)
        if self.settings.head_updates and not warms_up:
            now, (_, next_policy, next_value, *_) = features.now[0].detach(), features
            read = HeadBatch(now, next_policy, next_value, batch.action, reward, batch.discount)
            self._update_heads(heads, self._recent.setdefault(task, RecentBatches(self.settings.head_updates)), read)
        return metrics

    def _update_heads(self, heads: TaskHeads, recent: RecentBatches, newest: HeadBatch) -> None:
        """Actor and critics once more from every recent batch; the newest one's turn comes with the next updates."""
        for batch in recent:
            target = self._td_target(heads, batch.next_policy, batch.next_value, batch.reward, batch.discount)  # (B,)
            q1, q2 = heads.critic(batch.now, batch.action)
            self.critic_optimiser.step(losses.critic_loss(q1[None], q2[None], target), self.settings.gradient_clip)
            self._update_actor(heads, batch.now)
            ema_update(heads.target_critic, heads.critic, self.settings.critic_tau)
        recent.add(newest)

    def _read(self, task: str, batch: Batch) -> Features:
        """A batch's features, with the actions before them."""
        if self._sees_statistics(task):
            self.encoder.observe(batch.observation[0], self._index(task))
        features, with_past = self._encode(task, batch.observation, batch.next_observation), self._heads(task).with_past
        return features._replace(
            now=with_past(features.now, batch.past),
            next_policy=with_past(features.next_policy, batch.next_past),
            next_value=with_past(features.next_value, batch.next_past),
        )

    def _sees_statistics(self, task: str) -> bool:
        """Whether pixel statistics look at this update's batch: a mean of many batches changes little by one more."""
        updates = self.task_updates[task]
        return updates < STATISTICS_SETTLED or updates % STATISTICS_EVERY == 0

    def _in_critics_unit(self, task: str, reward: Tensor) -> Tensor:
        """Rewards as critics learn them, found finite: asked for before anything changes."""
        self._check_rewards(reward)
        return reward / self._frames_per_step(task) if self.settings.rewards == "frame" else reward

    def _encode(self, task: str, shown: Tensor, next_shown: Tensor) -> Features:
        """All encoder passes of an update. `shown` is (V, B, H, W, C), `next_shown` (W, B, H, W, C)."""
        index, batch = self._index(task), shown.shape[1]
        learnt = shown[:2] if self.settings.q_regularisation else shown[:1]
        contrasts = self._contrasts and torch.is_grad_enabled()
        tokens = self._pass(learnt.flatten(0, 1), index)
        now = _by_view(tokens.policy, batch)
        with torch.no_grad():
            after = next_shown.flatten(0, 1)
            next_policy = self._pass(after, index).policy
            # Without a target encoder the same pass serves the target Q heads.
            next_value = self._target_pass(after, index).policy if self._ema_targets else next_policy
            contrastive_target = self._byol_pass(shown[1], index).contrastive if contrasts else None
        return Features(
            now,
            _by_view(next_policy, batch),
            _by_view(next_value, batch),
            tokens.contrastive[:batch] if contrasts else None,
            contrastive_target,
        )

    def _update_critic(
        self,
        heads: TaskHeads,
        features: Features,
        action: Tensor,
        reward: Tensor,
        discount: Tensor,
        rehearsal: Rehearsal | None,
    ) -> dict[str, Tensor]:
        """Critics, encoder and contrastive heads together: the paper's total loss, in equal parts."""
        target = self._td_target(heads, features.next_policy, features.next_value, reward, discount)  # (B,)
        views = len(features.now)
        q1, q2 = heads.critic(features.now.flatten(0, 1), action.repeat(views, 1))
        q1, q2 = _by_view(q1, len(reward)), _by_view(q2, len(reward))  # (V, B)
        critic = losses.critic_loss(q1, q2, target)
        metrics = {
            "critic_loss": critic.detach(),
            "q": q1.detach().mean(),
            "q_target": target.mean(),
            "feature_std": features.now.detach()[0].std(0).mean(),
            "batch_reward": reward.mean(),
        }
        loss = critic
        if features.contrastive is not None and features.contrastive_target is not None:
            contrastive = self._contrastive_loss(features.contrastive, features.contrastive_target)
            metrics["contrastive_loss"] = contrastive.detach()
            loss = loss + self.settings.contrastive_weight * contrastive
        if heads.predictor is not None and not self._frozen:
            predicted = self._prediction_losses(heads, heads.predictor, features, action, reward)
            metrics |= {name: part.detach() for name, part in predicted.items()}
            loss = loss + self.settings.prediction_weight * sum(predicted.values())
        if rehearsal is not None and self._transfer is not None:
            held = self._rehearsal_loss(rehearsal)
            metrics["rehearsal_loss"] = held.detach()
            # In proportion to the critic's loss: errors of large values would drown any fixed weight.
            loss = loss + self._transfer.rehearsal_weight * critic.detach().clamp(min=1.0) * held
        moved = self._protection.moved()
        if moved is not None and features.now.requires_grad:  # not in a warm-up
            metrics["protection_loss"] = moved.detach()
            loss = loss + critic.detach().clamp(min=1.0) * moved
        with self._protection.held():
            metrics["gradient_norm"] = self.critic_optimiser.step(loss, self.settings.gradient_clip)
        return metrics

    @torch.no_grad()
    def _td_target(
        self, heads: TaskHeads, next_policy: Tensor, next_value: Tensor, reward: Tensor, discount: Tensor
    ) -> Tensor:
        policy = next_policy.flatten(0, 1)
        chosen = heads.actor.sample(policy, self._noise(len(policy), heads.action_dim))
        q1, q2 = heads.target_critic(next_value.flatten(0, 1), chosen.action)
        value = losses.soft_value(q1, q2, chosen.log_prob, heads.log_temperature.exp())
        return losses.td_target(reward, discount, _by_view(value, len(reward)))

    def _frames_per_step(self, task: str) -> int:
        return self.config.env.action_repeat or action_repeat(task)

    def _contrastive_loss(self, online: Tensor, target: Tensor) -> Tensor:
        prediction = self.contrast.predict(self.contrast.project(online))
        with torch.no_grad():
            projection = self.byol_projector(target)
        return losses.byol_loss(prediction, projection, self.settings.contrastive_loss)

    def _prediction_losses(
        self, heads: TaskHeads, predictor: Predictor, features: Features, action: Tensor, reward: Tensor
    ) -> dict[str, Tensor]:
        """On the features that the critics read; those of s' come from the pass without gradient."""
        project = heads.critic.project
        following, predicted_reward = predictor(project(features.now[0]), action)
        with torch.no_grad():
            truly = project(features.next_policy[0])  # (B, F)
        return {
            "prediction_loss": losses.prediction_loss(following, truly),
            "reward_loss": losses.reward_loss(predicted_reward, reward),
        }

    def _rehearsal_loss(self, rehearsal: Rehearsal) -> Tensor:
        """How far an old task's outputs on kept observations have moved. Its actor stays; only the encoder learns."""
        actor = self._heads(rehearsal.task).actor.requires_grad_(False)
        now = self._outputs(rehearsal.task, rehearsal.observations.to(self.device, non_blocking=True))
        actor.requires_grad_(True)
        features, action, std = (x.to(self.device, non_blocking=True) for x in rehearsal.outputs)
        moved = losses.squared_drift(now.features, features, rehearsal.spread)
        return moved + losses.policy_distance(now.action, now.std, action, std)

    def _update_actor(self, heads: TaskHeads, features: Tensor) -> dict[str, Tensor]:
        """Actor and temperature, on detached features: the encoder learns nothing from them."""
        sampled = heads.actor.sample(features, self._noise(len(features), heads.action_dim))
        temperature = heads.log_temperature.exp()
        heads.critic.requires_grad_(False)  # only the action's gradient is wanted
        q1, q2 = heads.critic(features, sampled.action)
        loss = losses.actor_loss(q1, q2, sampled.log_prob, temperature.detach())
        self.actor_optimiser.step(loss)
        heads.critic.requires_grad_(True)
        metrics = {
            "actor_loss": loss.detach(),
            "entropy": -sampled.log_prob.detach().mean(),
            "temperature": temperature.detach(),
        }
        if heads.learns_temperature:
            loss = losses.temperature_loss(temperature, sampled.log_prob, heads.target_entropy)
            self.temperature_optimiser.step(loss)
        return metrics

    def _update_targets(self, task: str, progress: float) -> None:
        """Target Q heads and encoder at the critics' rate, every few of the task's own updates; BYOL's at its own."""
        s, heads = self.settings, self._heads(task)
        if self.task_updates[task] % s.target_every == 0:
            ema_update(heads.target_critic, heads.critic, s.critic_tau)
            if self._ema_targets:
                ema_update(self.target_encoder, self.encoder, s.critic_tau)
        if self._ema_contrast:
            tau = 1 - losses.byol_momentum(s.byol_momentum, progress)
            ema_update(self.byol_encoder, self.encoder, tau)
            ema_update(self.byol_projector, self.contrast.project, tau)

    @property
    def _target_encoders(self) -> list[Encoder]:
        """The encoder's EMA copies."""
        return [copy for copy in (self.target_encoder, self.byol_encoder) if copy is not self.encoder]

    # Optimisers

    @property
    def _plain_decay(self) -> float:
        """Decay of biases, norms, tokens, positions, heads and temperature."""
        return self.settings.weight_decay if self.settings.decay_on == "all" else 0.0

    def _make_optimisers(self) -> None:
        s = self.settings
        self.critic_optimiser, self.actor_optimiser, self.temperature_optimiser = (
            Optimiser(name, s, self.device) for name in ("critic", "actor", "temperature")
        )
        encoder = [(name, p) for name, p in self.encoder.named_parameters()]
        matrices = [p for name, p in encoder if p.ndim > 1 and "position" not in name]
        others = [p for name, p in encoder if not (p.ndim > 1 and "position" not in name)]
        self.critic_optimiser.add(matrices, s.encoder_lr_scale, s.weight_decay)
        self.critic_optimiser.add(others, s.encoder_lr_scale, self._plain_decay)
        self.critic_optimiser.add(self.contrast.parameters(), 1.0, self._plain_decay)

    def _set_learning_rate(self, progress: float, share: float) -> None:
        rate = share * scheduled_rate(self.settings, progress)
        for optimiser in self._optimisers:
            optimiser.set_rate(rate)

    @property
    def _optimisers(self) -> tuple[Optimiser, Optimiser, Optimiser]:
        return self.critic_optimiser, self.actor_optimiser, self.temperature_optimiser

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        recent = {
            f"{self._index(task)}.{name}": part
            for task, held in self._recent.items()
            for name, part in held.tensors().items()
        }
        return super().tensors() | ({RECENT: recent} if recent else {})

    def load_tensors(self, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().load_tensors(saved)
        parts: dict[str, dict[str, Tensor]] = {}
        for name, part in saved.get(RECENT, {}).items():
            number, _, field = name.partition(".")
            parts.setdefault(self.tasks[int(number)], {})[field] = part
        for task, fields in parts.items():
            self._recent[task] = RecentBatches(self.settings.head_updates)
            self._recent[task].load_tensors(fields, self.device)

    @property
    def _modules(self) -> dict[str, nn.Module]:
        modules: dict[str, nn.Module] = {"encoder": self.encoder, "contrast": self.contrast, "heads": self.heads}
        if self._ema_targets:
            modules["target_encoder"] = self.target_encoder
        if self._ema_contrast:
            modules |= {"byol_encoder": self.byol_encoder, "byol_projector": self.byol_projector}
        return modules | self._protection.modules


def _by_view(flat: Tensor, batch: int) -> Tensor:
    """(V*B, ...) to (V, B, ...)."""
    return flat.reshape(-1, batch, *flat.shape[1:])
