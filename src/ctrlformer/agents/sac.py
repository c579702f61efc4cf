"""SAC with DrQ's regularisation and BYOL beside it, one set of heads per task; every part a switch.

One update, few passes: an encoder pass yields all policy tokens and the contrastive token at once, so an
update needs the online encoder with gradient on the views of s, without on the views of s', and the target
encoder on the views of s' and one view of s. The actor reuses the critic pass's features, detached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ctrlformer.agents import losses
from ctrlformer.agents.contract import Memoryless, Policy
from ctrlformer.agents.learner import Learner
from ctrlformer.agents.optimiser import Optimiser
from ctrlformer.agents.task_heads import Contrast, TaskHeads
from ctrlformer.config import Config, TransferConfig
from ctrlformer.encoders import Encoder, Tokens, make_encoder, make_frame_reader
from ctrlformer.encoders.sharded import ShardedPass
from ctrlformer.hardware import choose_precision
from ctrlformer.kept import Outputs, Rehearsal
from ctrlformer.nn.ema import ema_update, frozen_copy
from ctrlformer.nn.seeding import reproducible
from ctrlformer.replay import Batch, Replay

_Pass = Callable[[Tensor, int], Tokens]  # an encoder's forward pass


class _Features(NamedTuple):
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
            self.contrast = Contrast(self.settings, self.encoder.contrastive_dim).to(self.device)
        self.shares_encoder = self.settings.target_encoder == "online"
        self.target_encoder = self.encoder if self.shares_encoder else frozen_copy(self.encoder)
        self.target_projector = self.contrast.project if self.shares_encoder else frozen_copy(self.contrast.project)
        self._pass = self._fast(self.encoder, compiled)
        self._target_pass = self._pass if self.shares_encoder else self._fast(self.target_encoder, compiled)
        self._transfer: TransferConfig | None = None  # of the stage under way; none in the first
        self._make_optimisers()

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

    def add_task(self, task: str, action_dim: int, transfer: TransferConfig | None = None) -> None:
        """One more policy token, actor, critics and temperature; nothing old is replaced.

        `transfer` begins a later stage: the encoder slows down or freezes, the token starts as the previous task's
        copy, and heads may be copied too. Without it the token is random: the first stage.
        """
        index = len(self.tasks)
        if transfer:
            self._begin_transfer(transfer)
        with reproducible(self._seed + 1 + index):
            copy_from = index - 1 if transfer else None
            tokens = self.encoder.add_task(copy_from)
            heads = TaskHeads(self.settings, self.config.encoder.feature_dim, action_dim).to(self.device)
            if not self.shares_encoder:
                for token, online in zip(self.target_encoder.add_task(copy_from), tokens, strict=True):
                    token.requires_grad_(False).copy_(online.detach())
        source = self._head_source(action_dim, transfer)
        if source is not None:
            heads.copy_from(source)
        self.tasks.append(task)
        self.heads.append(heads)
        if tokens:
            self.critic_optimiser.add(tokens, self.settings.encoder_lr_scale, self._plain_decay)
        self.critic_optimiser.add(heads.critic.parameters(), 1.0, self._plain_decay)
        self.actor_optimiser.add(heads.actor.parameters(), 1.0, self._plain_decay)
        self.temperature_optimiser.add([heads.log_temperature], 1.0, self._plain_decay)

    def _begin_transfer(self, transfer: TransferConfig) -> None:
        """Slow down or freeze what the encoder has learnt; a new token, added after this, learns at full rate."""
        self._transfer = transfer
        self.encoder.requires_grad_(not self._frozen)
        scale = self.settings.encoder_lr_scale * transfer.encoder_lr_scale
        self.critic_optimiser.rescale(self.encoder.parameters(), scale)

    def _head_source(self, action_dim: int, transfer: TransferConfig | None) -> TaskHeads | None:
        """The newest heads that a new task with so many actions copies, if it shall and there are any."""
        if transfer is None or transfer.heads == "fresh":
            return None
        fitting = [heads for heads in self._all_heads if heads.action_dim == action_dim]
        return fitting[-1] if fitting else None

    def policy(self, task: str, explore: bool, memory: Tensor | None = None) -> Policy:
        """From one observation (H, W, C) to one action (A,): sampled, or the mean. There is no memory."""
        index, heads = self._index(task), self._heads(task)

        @torch.no_grad()
        def act(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
            x = self.reader.stack(pixels)[None].to(self.device)
            features = self.encoder(x, index).policy[:, index]  # (1, F)
            if explore:
                action = heads.actor.sample(features, self._noise(1, heads.action_dim)).action
            else:
                action = heads.actor.mean_action(features)
            numbers: NDArray[np.float32] = action[0].cpu().numpy()
            return numbers

        return Memoryless(act)

    def value(self, task: str, features: Tensor) -> Tensor:
        """What the task's critics think of its mean action, the lower of the two: (B, F) to (B,)."""
        heads = self._heads(task)
        return torch.minimum(*heads.critic(features, heads.actor.mean_action(features)))

    @torch.no_grad()
    def outputs(self, task: str, observations: Tensor) -> Outputs:
        """What the task's policy makes of observations of the replay, (N, H, W, C), as it is now."""
        shares = torch.split(observations, self.settings.batch_size)
        parts = [self._outputs(task, share.to(self.device)) for share in shares]
        return Outputs(*map(torch.cat, zip(*parts, strict=True)))

    def _outputs(self, task: str, observations: Tensor) -> Outputs:
        index = self._index(task)
        features = self._pass(observations, index).policy[:, index]
        mean, log_std = self._heads(task).actor(features)
        return Outputs(features, torch.tanh(mean), log_std.exp())

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
        )

    def update(
        self, task: str, batch: Batch, progress: float = 0.0, rehearsal: Rehearsal | None = None
    ) -> dict[str, Tensor]:
        """One gradient step on every loss; returns the figures to log, still on the device: reading them there
        and then would make the processor wait. `progress` is the stage's, 0 to 1. With `rehearsal` the encoder is
        held to an old task's outputs in the same step."""
        heads = self._heads(task)
        self._set_learning_rate(progress)
        shown, action, reward, discount, next_shown = (x.to(self.device, non_blocking=True) for x in batch)
        self._check_rewards(reward)

        self.encoder.observe(shown[0], self._index(task))
        features = self._encode(task, shown, next_shown)
        metrics = self._update_critic(heads, features, action, reward, discount, rehearsal)
        if self.updates % self.settings.actor_every == 0:
            metrics |= self._update_actor(heads, features.now[0].detach())
        self._update_targets(heads, progress)
        self.updates += 1
        return metrics

    def _encode(self, task: str, shown: Tensor, next_shown: Tensor) -> _Features:
        """All encoder passes of an update. `shown` is (V, B, H, W, C), `next_shown` (W, B, H, W, C)."""
        index, batch = self._index(task), shown.shape[1]
        learnt = shown[:2] if self.settings.q_regularisation else shown[:1]
        tokens = self._pass(learnt.flatten(0, 1), index)
        now = _by_view(tokens.policy[:, index], batch)
        with torch.no_grad():
            after = next_shown.flatten(0, 1)
            next_policy = self._pass(after, index).policy[:, index]
            # With a shared encoder the same pass serves the target Q heads.
            next_value = next_policy
            if not self.shares_encoder:
                next_value = self._target_pass(after, index).policy[:, index]
            contrastive_target = None
            if self._contrasts:
                contrastive_target = self._target_pass(shown[1], index).contrastive
        return _Features(
            now,
            _by_view(next_policy, batch),
            _by_view(next_value, batch),
            tokens.contrastive[:batch] if self._contrasts else None,
            contrastive_target,
        )

    def _update_critic(
        self,
        heads: TaskHeads,
        features: _Features,
        action: Tensor,
        reward: Tensor,
        discount: Tensor,
        rehearsal: Rehearsal | None,
    ) -> dict[str, Tensor]:
        """Critics, encoder and contrastive heads together: the paper's total loss, in equal parts."""
        target = self._td_target(heads, features, reward, discount)  # (B,)
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
        if rehearsal is not None and self._transfer is not None:
            held = self._rehearsal_loss(rehearsal)
            metrics["rehearsal_loss"] = held.detach()
            # In proportion to the critic's loss: errors of large values would drown any fixed weight.
            loss = loss + self._transfer.rehearsal_weight * critic.detach().clamp(min=1.0) * held
        metrics["gradient_norm"] = self.critic_optimiser.step(loss, self.settings.gradient_clip)
        return metrics

    @torch.no_grad()
    def _td_target(self, heads: TaskHeads, features: _Features, reward: Tensor, discount: Tensor) -> Tensor:
        policy = features.next_policy.flatten(0, 1)
        chosen = heads.actor.sample(policy, self._noise(len(policy), heads.action_dim))
        q1, q2 = heads.target_critic(features.next_value.flatten(0, 1), chosen.action)
        value = losses.soft_value(q1, q2, chosen.log_prob, heads.log_temperature.exp())
        return losses.td_target(reward, discount, _by_view(value, len(reward)))

    def _contrastive_loss(self, online: Tensor, target: Tensor) -> Tensor:
        prediction = self.contrast.predict(self.contrast.project(online))
        with torch.no_grad():
            projection = self.target_projector(target)
        return losses.byol_loss(prediction, projection, self.settings.contrastive_loss)

    def _rehearsal_loss(self, rehearsal: Rehearsal) -> Tensor:
        """How far an old task's outputs on kept observations have moved. Its actor stays; only the encoder learns."""
        actor = self._heads(rehearsal.task).actor.requires_grad_(False)
        now = self._outputs(rehearsal.task, rehearsal.observations.to(self.device, non_blocking=True))
        actor.requires_grad_(True)
        features, action, deviation = (x.to(self.device, non_blocking=True) for x in rehearsal.outputs)
        moved = losses.squared_drift(now.features, features, rehearsal.spread)
        return moved + losses.policy_distance(now.action, now.deviation, action, deviation)

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
        if self.settings.learn_temperature:
            loss = losses.temperature_loss(temperature, sampled.log_prob, heads.target_entropy)
            self.temperature_optimiser.step(loss)
        return metrics

    def _update_targets(self, heads: TaskHeads, progress: float) -> None:
        due = (self.updates + 1) % self.settings.target_every == 0
        if due:
            ema_update(heads.target_critic, heads.critic, self.settings.critic_tau)
        if self.shares_encoder:
            return
        if self.settings.target_encoder == "byol":
            tau = 1 - losses.byol_momentum(self.settings.byol_momentum, progress)
        elif due:
            tau = self.settings.critic_tau
        else:
            return
        ema_update(self.target_encoder, self.encoder, tau)
        ema_update(self.target_projector, self.contrast.project, tau)

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

    def _set_learning_rate(self, progress: float) -> None:
        s = self.settings
        late = s.late_learning_rate is not None and progress >= s.late_from
        rate = s.late_learning_rate if late else s.learning_rate
        assert rate is not None
        for optimiser in self._optimisers:
            optimiser.set_rate(rate)

    @property
    def _optimisers(self) -> tuple[Optimiser, Optimiser, Optimiser]:
        return self.critic_optimiser, self.actor_optimiser, self.temperature_optimiser

    @property
    def _modules(self) -> dict[str, nn.Module]:
        modules: dict[str, nn.Module] = {"encoder": self.encoder, "contrast": self.contrast, "heads": self.heads}
        if not self.shares_encoder:
            modules |= {"target_encoder": self.target_encoder, "target_projector": self.target_projector}
        return modules


def _by_view(flat: Tensor, batch: int) -> Tensor:
    """(V*B, ...) to (V, B, ...)."""
    return flat.reshape(-1, batch, *flat.shape[1:])
