"""A stage while it lasts: for each of its tasks a lane with environments, replay and batches drawn ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctrlformer.agents import Agent
from ctrlformer.config import StageConfig
from ctrlformer.envs import make_env
from ctrlformer.envs.pixels import Action, PixelEnv
from ctrlformer.replay import Replay, ring_bytes
from ctrlformer.replay.rehearsal import Kept, Rehearser
from ctrlformer.storage.files import JSON
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.system.memory import fits_on_device
from ctrlformer.training.collect import Collector
from ctrlformer.training.position import Averages, TaskPosition
from ctrlformer.training.prefetch import Draws


@dataclass
class Lane:
    """What learning one task needs."""

    task: str
    position: TaskPosition
    eval_env: PixelEnv
    replay: Replay
    collector: Collector
    draws: Draws
    rng: np.random.Generator
    """Decides random actions and batches."""
    knows_how: bool
    """Whether its heads were copied: then not even its first actions are random."""
    update_every: int = 1
    """Steps between two rounds of updates."""
    averages: Averages = field(default_factory=Averages)

    def learns_after(self, steps: int, seed_steps: int) -> bool:
        """Whether updates follow when the task has had so many steps."""
        return steps >= seed_steps and steps % self.update_every == 0

    def progress(self, budget: int) -> float:
        """Share of the task's updates in this stage that are done, 0 to 1: what schedules count. Those left are what
        the frames left will bring, at as many frames a step as so far; random first steps bring none."""
        position = self.position
        steps_left = max(0, budget - position.frames) * position.steps / position.frames
        left = steps_left * self.draws.updates / self.update_every
        return position.updates / (position.updates + left) if left else 1.0

    def choose(self, seed_steps: int) -> Action:
        """The next action: random at first, unless the policy already knows something."""
        at_random = self.position.steps < seed_steps and not self.knows_how
        return self.collector.choose(self.rng if at_random else None)

    def play(self, action: Action, seed_steps: int, budget: int) -> tuple[int, float | None]:
        """What happens beside the updates: the step, and the draw for the next ones if there will be any."""
        frames, episode_return = self.collector.step(action)
        if self.learns_after(self.position.steps + 1, seed_steps) and self.position.frames + frames < budget:
            self.draws.draw()
        return frames, episode_return

    def state(self) -> dict[str, JSON]:
        """What a checkpoint keeps beside the episode's actions; `LaneState` reads it."""
        return {
            "averages": self.averages.as_json(),
            "random": self.draws.random_state,
            "episode": self.collector.episode,
            "fingerprint": self.collector.fingerprint(),
            "replay": self.replay.flush(),
        }

    def actions(self) -> Tensor:
        """(T, A) of the open episode; none between two episodes."""
        return torch.from_numpy(np.array(self.collector.actions, np.float32))


@dataclass
class SavedLane:
    """A lane as its checkpoint left it, the replay already read and found sound."""

    position: TaskPosition
    averages: Averages
    random: Mapping[str, JSON]
    replay: Replay
    episode: int
    fingerprint: int | None
    actions: NDArray[np.float32]
    memory: Tensor | None


@dataclass
class Stage:
    config: StageConfig
    lanes: list[Lane]
    player: ThreadPoolExecutor
    """One thread that plays and draws while the main thread learns."""

    @property
    def frames(self) -> int:
        """What every task of the stage has had."""
        return self.hindmost.position.frames

    @property
    def ended(self) -> bool:
        return self.frames >= self.config.frames

    @property
    def hindmost(self) -> Lane:
        """The task whose turn it is: so that tasks learnt together stay together, whatever their action repeat."""
        return min(self.lanes, key=lambda lane: lane.position.frames)


class StageOpener:
    """Opens a run's stages, new or as a checkpoint left them."""

    def __init__(self, run: RunFolder, agent: Agent, say: Callable[[str], None]) -> None:
        self._run, self._config, self._agent, self._say = run, run.config, agent, say

    @contextmanager
    def open(self, number: int, saved: list[SavedLane], kept: list[Kept]) -> Iterator[Stage]:
        """The stage of that number; a task that the agent does not know yet is added to it."""
        config = self._config.stages[number]
        rehearse = config.transfer.protect == "rehearse" and kept
        rehearser = Rehearser(kept, config.transfer.rehearsal_batch) if rehearse else None
        with ExitStack() as stack:
            player = stack.enter_context(ThreadPoolExecutor(1, "player"))
            envs = [stack.enter_context(self._played(player, task)) for task in config.tasks]
            for env in envs:
                if env.task not in self._agent.tasks:
                    self._agent.add_task(env.task, env.action_dim, config.transfer if number else None)
            lanes = []
            for index, env in enumerate(envs):
                eval_env = stack.enter_context(closing(make_env(env.task, self._config.env)))
                lane = self._new_lane(number, index, env, eval_env, saved[index].replay if saved else None, rehearser)
                if saved:
                    player.submit(self._go_on, lane, saved[index]).result()
                lanes.append(lane)
            yield Stage(config, lanes, player)

    def replay(self, task: str, action_dim: int, saved: Mapping[str, JSON] | None) -> Replay:
        """A task's replay, empty or as it was at a checkpoint."""
        settings, device, features = self._config.training, self._agent.device, self._agent.reader.features
        shape = (settings.replay_capacity, action_dim, self._agent.frame_size, self._config.env.frame_stack)
        fits = settings.replay_on == "auto" and fits_on_device(ring_bytes(*shape, features), device)
        on_device = settings.replay_on == "device" or fits
        folder = self._run.replay(task)
        if saved is None:
            return Replay(folder, *shape, features=features, device=device, frames_on_device=on_device)
        return Replay.restore(folder, saved, *shape, features=features, device=device, frames_on_device=on_device)

    @contextmanager
    def _played(self, player: ThreadPoolExecutor, task: str) -> Iterator[PixelEnv]:
        """An environment made, used and closed in the player's thread: an OpenGL context belongs to one thread."""
        env = player.submit(make_env, task, self._config.env).result()
        try:
            yield env
        finally:
            player.submit(env.close).result()

    def _new_lane(
        self,
        stage: int,
        index: int,
        env: PixelEnv,
        eval_env: PixelEnv,
        replay: Replay | None,
        rehearser: Rehearser | None,
    ) -> Lane:
        seed, agent, task = self._config.seed, self._agent, env.task
        if replay is None:  # a restored one may be empty, and then counts as false
            replay = self.replay(task, env.action_dim, None)
        collector = Collector(agent, env, task, replay, seed, stage, index, read=agent.reader.read)
        rng = np.random.default_rng((seed, stage, index))
        settings = self._config.agent
        draws = Draws(replay, rng, agent.draw, settings.updates_per_step, rehearser)
        every = settings.update_every
        knows_how = agent.knows_how(task) and not self._config.stages[stage].transfer.random_start
        return Lane(task, TaskPosition(), eval_env, replay, collector, draws, rng, knows_how, every)

    def _go_on(self, lane: Lane, saved: SavedLane) -> None:
        """Stand where the checkpoint was written, in the middle of an episode too."""
        lane.position, lane.averages = saved.position, saved.averages
        lane.rng.bit_generator.state = saved.random
        lane.collector.reopen(saved.episode, saved.actions, saved.memory)
        if lane.collector.fingerprint() != saved.fingerprint:
            self._say(
                "warning: the open episode shows other pixels than before (another machine or renderer?); "
                "the run goes on, but not exactly as if it had never stopped"
            )
