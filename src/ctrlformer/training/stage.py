"""The stage under way: for each of its tasks a lane with environments, replay and prefetched batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ctrlformer.agents import Agent
from ctrlformer.agents.base import TransferSource
from ctrlformer.config import StageConfig
from ctrlformer.config.stored_frames import stored_frame
from ctrlformer.envs import make_env
from ctrlformer.envs.pixels import ActionArray, PixelEnv
from ctrlformer.replay import Replay, ring_bytes
from ctrlformer.replay.rehearsal import RehearsalBuffer, RehearsalSampler
from ctrlformer.storage.checkpoint import Checkpoint
from ctrlformer.storage.files import JSON
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.system.memory import fits_on_device
from ctrlformer.training.callbacks import StageInfo
from ctrlformer.training.collect import Collector
from ctrlformer.training.prefetch import BatchPrefetcher
from ctrlformer.training.probes import RANDOM, SHARE, Prober, ProbeResult, choose_source, configured_source
from ctrlformer.training.progress import Averages, TaskProgress
from ctrlformer.training.state import LaneState, OpenEpisode, TrainerState

NOTICE_SECONDS = 0.2  # within which a signal is noticed during probes


@dataclass
class Lane:
    """Everything that learning one task needs."""

    task: str
    progress: TaskProgress
    eval_env: PixelEnv
    replay: Replay
    collector: Collector
    batches: BatchPrefetcher
    rng: np.random.Generator
    """Decides random actions and batches."""
    random_start: bool
    """Whether its first actions are random; copied heads need not begin so."""
    update_every: int = 1
    """Steps between two rounds of updates."""
    averages: Averages = field(default_factory=Averages)
    source: TransferSource | None = None
    """What the task starts from where the settings leave it to probes or name it; none after a resume."""
    probes: list[ProbeResult] = field(default_factory=list)
    """By which the source was chosen."""

    def begin_after(self, probes: list[ProbeResult]) -> None:
        """Count what was played in probes: it is in the replay, and part of the budget."""
        self.probes = probes
        for probe in probes:
            self.progress.frames += probe.frames
            self.progress.steps += probe.steps
            self.progress.probe_steps += 0 if probe.policy == RANDOM else probe.steps
            self.collector.episode = len(probe.returns)

    def first_steps(self, seed_steps: int) -> int:
        """Steps before learning begins. Old policies' probes are no substitute for random actions."""
        return seed_steps + (self.progress.probe_steps if self.random_start else 0)

    def learns_after(self, steps: int, seed_steps: int) -> bool:
        """Whether updates follow when the task has had so many steps."""
        return steps >= self.first_steps(seed_steps) and steps % self.update_every == 0

    def updates_done(self, budget: int) -> float:
        """Share of the task's updates in this stage that are done, 0 to 1: what schedules count. Those left are what
        the frames left will bring, at as many frames a step as so far; random first steps bring none."""
        done = self.progress
        steps_left = max(0, budget - done.frames) * done.steps / done.frames
        left = steps_left * self.batches.updates / self.update_every
        return done.updates / (done.updates + left) if left else 1.0

    def choose(self, seed_steps: int) -> ActionArray:
        """Choose the next action, at random in the first steps."""
        at_random = self.random_start and self.progress.steps < self.first_steps(seed_steps)
        return self.collector.choose(self.rng if at_random else None)

    def play(self, action: ActionArray, seed_steps: int, budget: int) -> tuple[int, float | None]:
        """What happens beside the updates: the step, and the draw for the next ones if there will be any."""
        frames, episode_return = self.collector.step(action)
        if self.learns_after(self.progress.steps + 1, seed_steps) and self.progress.frames + frames < budget:
            self.batches.draw()
        return frames, episode_return


class SavedLane(NamedTuple):
    """A lane of a checkpoint, its replay already read and found sound."""

    progress: TaskProgress
    state: LaneState
    episode: OpenEpisode
    replay: Replay


@dataclass
class Stage:
    """The stage under way."""

    number: int
    config: StageConfig
    lanes: list[Lane]
    player: ThreadPoolExecutor
    """One thread that plays and draws while the main thread learns."""

    @property
    def frames(self) -> int:
        """Frames that every task of the stage has had."""
        return self.next_lane.progress.frames

    @property
    def ended(self) -> bool:
        return self.frames >= self.config.frames

    @property
    def next_lane(self) -> Lane:
        """The one with the fewest frames: tasks learnt together keep the same pace, whatever their action repeat."""
        return min(self.lanes, key=lambda lane: lane.progress.frames)

    @property
    def info(self) -> StageInfo:
        """What callbacks are told of it."""
        done = sum(lane.progress.frames for lane in self.lanes)
        return StageInfo(self.number, self.config.tasks, len(self.lanes) * self.config.frames, done)


class StageOpener:
    """Opens a run's stages, new or as a checkpoint left them."""

    def __init__(
        self,
        run: RunFolder,
        agent: Agent,
        say: Callable[[str], None],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._run, self._config, self._agent, self._say = run, run.config, agent, say
        self._should_stop = should_stop
        self.sources: dict[str, TransferSource] = {}
        """What tasks of later stages started from, where the settings leave it to probes or name it."""

    @contextmanager
    def open(self, number: int, saved: list[SavedLane], buffers: list[RehearsalBuffer]) -> Iterator[Stage]:
        """Open the stage of that number; add a task that the agent does not know yet, after probes if need be.

        A stop that is asked for during probes raises `Abandoned`: a resume repeats them.
        """
        config = self._config.stages[number]
        rehearse = config.transfer.protect == "rehearse" and buffers
        sampler = RehearsalSampler(buffers, config.transfer.rehearsal_batch) if rehearse else None
        with ExitStack() as stack:
            player = stack.enter_context(ThreadPoolExecutor(1, "player"))
            envs = [stack.enter_context(self._played(player, task)) for task in config.tasks]
            lanes = []
            for index, env in enumerate(envs):
                eval_env = stack.enter_context(closing(make_env(env.task, self._config.env)))
                replay = saved[index].replay if saved else self.replay(env.task, env.action_dim, None)
                new = env.task not in self._agent.tasks
                probes = self._add_task((number, index), env, replay, player, buffers) if new else []
                lanes.append(self._new_lane((number, index), env, eval_env, replay, sampler))
                if new:
                    lanes[-1].source = self.sources.get(env.task)
                    lanes[-1].begin_after(probes)
                if saved:
                    player.submit(self._restore, lanes[-1], saved[index]).result()
            yield Stage(number, config, lanes, player)

    def _add_task(
        self,
        place: tuple[int, int],
        env: PixelEnv,
        replay: Replay,
        player: ThreadPoolExecutor,
        finished: list[RehearsalBuffer],
    ) -> list[ProbeResult]:
        """Add a task; in later stages find first what it starts from, by probes where the settings leave it open."""
        stage, probes = self._config.stages[place[0]], []
        transfer, source = stage.transfer if place[0] else None, None
        if transfer and transfer.source == "auto":
            prober = Prober(self._agent, env, replay, (self._config.seed, *place), self._should_stop)
            self._say(f"probes in {env.task}: {', '.join([RANDOM, *prober.policies])}")
            playing = player.submit(prober.play, int(SHARE * stage.frames))
            # A signal that comes just before a wait does not interrupt it: with short ones it is noticed soon.
            while not wait([playing], timeout=NOTICE_SECONDS).done:
                pass
            probes = playing.result()
            source = choose_source(probes, prober.most_similar(finished), transfer.heads)
        elif transfer:
            source = configured_source(transfer)
        if source is not None:
            self.sources[env.task] = source
        self._agent.add_task(env.task, env.action_dim, transfer, source)
        if transfer:
            self._agent.protect(finished)
        return probes

    def saved_lane(self, saved: Checkpoint, state: TrainerState, index: int) -> SavedLane:
        """Read a lane of a checkpoint with its replay; what does not fit raises one of many errors (`must_fit`)."""
        task, lane = list(state.lanes.items())[index]
        episode = OpenEpisode.read(saved, index, state.action_dims[task])
        self._agent.policy(task, explore=True, memory=episode.memory)  # refuses a memory that is not its own
        replay = self.replay(task, state.action_dims[task], lane.replay)
        return SavedLane(state.position.tasks[index], lane, episode, replay)

    def replay(self, task: str, action_dim: int, saved: Mapping[str, JSON] | None) -> Replay:
        """A task's replay, empty or as it was at a checkpoint."""
        settings, device, frame = self._config.training, self._agent.device, stored_frame(self._config)
        shape = (settings.replay_capacity, action_dim, frame.size, self._config.env.frame_stack)
        fits = settings.replay_on == "auto" and fits_on_device(ring_bytes(*shape, frame.features), device)
        where: Any = {"device": device, "frames_on_device": settings.replay_on == "device" or fits}
        folder = self._run.replay(task)
        if saved is None:
            return Replay(folder, *shape, features=frame.features, **where)
        return Replay.restore(folder, saved, *shape, features=frame.features, **where)

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
        place: tuple[int, int],
        env: PixelEnv,
        eval_env: PixelEnv,
        replay: Replay,
        sampler: RehearsalSampler | None,
    ) -> Lane:
        """`place` is the numbers of the stage and of the lane in it: seeds follow from it."""
        agent, settings, transfer = self._agent, self._config.agent, self._config.stages[place[0]].transfer
        rng = np.random.default_rng((self._config.seed, *place))
        update_every, updates = settings.update_rounds(env.action_repeat)
        return Lane(
            task=env.task,
            progress=TaskProgress(),
            eval_env=eval_env,
            replay=replay,
            collector=Collector(
                agent,
                env,
                replay,
                (self._config.seed, *place),
                read=agent.reader.read,
                longest=self._config.training.episode_frames,
            ),
            batches=BatchPrefetcher(replay, rng, agent.draw, updates, sampler),
            rng=rng,
            random_start=transfer.random_start or not agent.has_copied_heads(env.task),
            update_every=update_every,
        )

    def _restore(self, lane: Lane, saved: SavedLane) -> None:
        lane.progress = saved.progress
        if not saved.state.restore(lane, saved.episode):
            self._say(
                "warning: the open episode shows other pixels than before (another machine or renderer?); "
                "the run continues, but not exactly as if it had never stopped"
            )
