"""Public libraries doing the same work: stable-baselines3 and torchrl, from the extra `bench`.

Only functions import them, so that the other rows run without.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.experience import transitions
from benchmarks.listing_networks import drq_convolutions
from benchmarks.listings import StackedBatch
from benchmarks.stacked_replays import Draw, array_bytes
from benchmarks.table import Sample
from ctrlformer.config import Config
from ctrlformer.envs import make_env
from ctrlformer.envs.pixels import PixelEnv

SHAPED_LIKE = "toy/slide"  # has the shapes of cartpole, and is made in no time


class PeerReplay:
    """A peer's full replay: what it draws and how many bytes it holds."""

    def __init__(self, draw: Draw, allocated: int) -> None:
        self.draw, self.bytes = draw, allocated


def sb3_replay(steps: int) -> PeerReplay:
    """stable-baselines3's ReplayBuffer of stacked pixels, as its SAC makes it."""
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.vec_env import VecTransposeImage

    with closing(make_env(SHAPED_LIKE)) as env:
        space = VecTransposeImage.transpose_space(env.observation_space)
        buffer = ReplayBuffer(steps, space, env.action_space, device="cpu")
    nothing: list[dict[str, Any]] = [{}]
    for step in transitions(steps):
        buffer.add(
            step.observation, step.next_observation, step.action, np.array(step.reward), np.array(False), nothing
        )

    def draw(batch: int) -> tuple[Tensor, Tensor]:
        drawn = buffer.sample(batch)
        return drawn.observations, drawn.next_observations

    return PeerReplay(draw, array_bytes(buffer))


def torchrl_replay(steps: int) -> PeerReplay:
    """torchrl's TensorDictReplayBuffer in memory, with its usual names."""
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    logging.getLogger("torchrl").setLevel(logging.WARNING)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(steps))
    for step in transitions(steps):
        after = {
            "observation": torch.from_numpy(step.next_observation),
            "reward": torch.tensor([step.reward]),
            "done": torch.tensor([False]),
            "terminated": torch.tensor([False]),
        }
        now = {"observation": torch.from_numpy(step.observation), "action": torch.from_numpy(step.action)}
        buffer.add(TensorDict({**now, "next": after}))

    def draw(batch: int) -> tuple[Tensor, Tensor]:
        drawn = buffer.sample(batch)
        return drawn["observation"], drawn["next", "observation"]

    return PeerReplay(draw, buffer.storage[:].bytes())


def sb3_update(config: Config, batch: StackedBatch) -> Callable[[], object]:
    """One gradient step of stable-baselines3's SAC on `batch`, with DrQ's encoder and heads of the same widths.

    Actor and critics share the encoder, which is its cheapest way: five encoder passes, one with gradient.
    """
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    s = config.agent
    with closing(make_env(SHAPED_LIKE)) as env:
        model = SAC(
            "CnnPolicy",
            env,
            learning_rate=s.learning_rate,
            buffer_size=1,
            tau=s.critic_tau,
            policy_kwargs={
                "features_extractor_class": _drq_extractor(),
                "features_extractor_kwargs": {"features_dim": config.encoder.feature_dim},
                "net_arch": [s.head_width] * (s.head_layers - 1),
                "share_features_extractor": True,
            },
            device="cpu",
        )
    model.set_logger(Logger(None, []))
    column = batch.reward[:, None]
    samples = ReplayBufferSamples(
        batch.obs[0], batch.action, batch.next_obs[0], torch.zeros_like(column), column, batch.discount[:, None]
    )
    model.replay_buffer.sample = lambda size, env: samples  # drawing has its own row
    return lambda: model.train(gradient_steps=1, batch_size=len(column))


def _drq_extractor() -> type:
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class DrqExtractor(BaseFeaturesExtractor):  # type: ignore[misc]
        def __init__(self, space: Any, features_dim: int) -> None:
            super().__init__(space, features_dim)
            channels, size, _ = space.shape
            side = (size - 3) // 2 + 1 - 6
            head = [nn.Flatten(), nn.Linear(32 * side * side, features_dim), nn.LayerNorm(features_dim), nn.Tanh()]
            self.layers = nn.Sequential(drq_convolutions(channels), *head)

        def forward(self, obs: Tensor) -> Tensor:
            out: Tensor = self.layers(obs)
            return out

    return DrqExtractor


def sb3_training(env: PixelEnv, config: Config, seed_steps: int, steps: int, repeats: int) -> Sample:
    """Seconds a step of stable-baselines3's SAC with its own CNN: one update of our batch size after every step."""
    from stable_baselines3 import SAC

    model = SAC(
        "CnnPolicy",
        env,
        buffer_size=seed_steps + steps,
        batch_size=config.agent.batch_size,
        learning_starts=seed_steps,
        train_freq=1,
        gradient_steps=1,
        device="cpu",
    )
    model.learn(seed_steps, log_interval=None)
    each, seconds = max(1, steps // repeats), []
    for _ in range(repeats):
        started = time.perf_counter()
        model.learn(each, log_interval=None, reset_num_timesteps=False)
        seconds.append((time.perf_counter() - started) / each)
    return Sample.of(seconds)
