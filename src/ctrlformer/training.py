"""The curriculum loop: collect, update, evaluate, checkpoint; and the way back into it after a stop.

A curriculum is a list of stages, one task each. Everything that decides what happens next is in the agent's
tensors, the replay and `Position`; a checkpoint holds exactly these, so a resumed run repeats bit for bit what
an unbroken one would have done.

While the learner updates, a second thread plays one step and draws the batches of the next updates. The step's
action was chosen before the updates beside it began: a lag of one step's updates, always, and never a race.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctrlformer import checkpoint
from ctrlformer.agents import SacAgent
from ctrlformer.checkpoint import Checkpoint
from ctrlformer.curves import learning_curve
from ctrlformer.draws import Draws
from ctrlformer.envs import make_env
from ctrlformer.envs.pixels import Action, PixelEnv
from ctrlformer.errors import CheckpointError, NonFiniteError, RunError
from ctrlformer.files import JSON, reason, write_atomic
from ctrlformer.hardware import choose_device, use_compiler
from ctrlformer.machine import fits_on_device
from ctrlformer.progress import Progress
from ctrlformer.replay import Batch, Replay, ring_bytes
from ctrlformer.rollout import Abandoned, Collector, evaluate
from ctrlformer.runs import RunFolder
from ctrlformer.stopping import StopRequest
from ctrlformer.trackers import Tracker, open_trackers

CURVE = "curve.png"


@dataclass
class Position:
    """Where a curriculum stands."""

    stage: int = 0
    """Number of the stage; equal to the number of tasks when all is learnt."""
    frames: int = 0
    """Frames and steps of this stage."""
    steps: int = 0
    earlier_frames: int = 0
    """Frames and steps of the stages before."""
    earlier_steps: int = 0
    evaluated: int | None = None
    """Frames of this stage at its last evaluation."""
    minutes: float = 0.0
    """Wall-clock minutes of training so far, over all resumes."""

    def next_stage(self) -> Position:
        return Position(
            stage=self.stage + 1,
            earlier_frames=self.earlier_frames + self.frames,
            earlier_steps=self.earlier_steps + self.steps,
            minutes=self.minutes,
        )


@dataclass
class Averages:
    """Means of figures since the last log row; not every figure comes with every update."""

    sums: dict[str, float | Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, figures: Mapping[str, float | Tensor]) -> None:
        """Tensors are summed where they are, in double precision: no waiting for a device."""
        for name, value in figures.items():
            precise = value.double() if isinstance(value, Tensor) else value
            self.sums[name] = self.sums.get(name, 0.0) + precise
            self.counts[name] = self.counts.get(name, 0) + 1

    def as_json(self) -> dict[str, JSON]:
        return {"sums": {name: float(value) for name, value in self.sums.items()}, "counts": dict(self.counts)}

    def take(self) -> dict[str, float]:
        """The means, in alphabetical order; counting starts anew."""
        means = {name: float(self.sums[name]) / self.counts[name] for name in sorted(self.sums)}
        self.sums, self.counts = {}, {}
        return means


@dataclass
class Stage:
    """What learning one task needs while it lasts."""

    task: str
    eval_env: PixelEnv
    replay: Replay
    collector: Collector
    draws: Draws
    player: ThreadPoolExecutor
    """One thread that plays and draws while the main thread learns."""


@dataclass
class OpenEpisode:
    """What a checkpoint knows of the stage it was written in."""

    replay: Replay
    actions: NDArray[np.float32]  # (T, A) since the episode's start; none between two episodes
    number: int
    fingerprint: int | None


class Trainer:
    """Learns the tasks of a run folder's config, from the start or from its newest checkpoint."""

    def __init__(self, run: RunFolder, progress: Progress, stop: StopRequest) -> None:
        self.run, self.config = run, run.config
        device = choose_device(self.config.training.device)
        compiled = use_compiler(self.config.training.compile, device, progress.say)
        self.agent = SacAgent(self.config, device, self.config.seed, compiled)
        self.position = Position()
        self._progress, self._stop = progress, stop
        self._rng = np.random.default_rng(self.config.seed)
        self._averages = Averages()
        self._saved_frames: int | None = None
        self._open: OpenEpisode | None = None
        self._action_dims: dict[str, int] = {}
        self._log_started = self._clock_started = time.monotonic()
        self._learning_seconds = 0.0  # inside updates since the last log row
        self._trackers: list[Tracker] = []

    def learn(self) -> None:
        """Every stage that is left; raises `KeyboardInterrupt` or `SystemExit` after a signal, when all is saved."""
        with ExitStack() as stack:
            frames = self.position.earlier_frames + self.position.frames
            for tracker in open_trackers(self.run.path, self.config, frames):
                self._trackers.append(stack.enter_context(closing(tracker)))
            try:
                while self.position.stage < len(self.config.tasks):
                    with self._open_stage() as stage:
                        self._learn_stage(stage)
            except NonFiniteError as error:
                raise NonFiniteError(f"{error} (stopped in {self.run.path}; its last checkpoint is kept)") from error

    def restore(self, saved: Checkpoint) -> None:
        """Stand where the checkpoint was written; a `CheckpointError` means that it does not fit this run."""
        try:
            state = saved.state["trainer"]
            self._action_dims = restore_agent(self.agent, saved)
            self.position = Position(**state["position"])
            self._averages = Averages(**state["averages"])
            self._rng.bit_generator.state = state["random"]
            if state["episode"]:
                task = self.config.tasks[self.position.stage]
                replay = self._open_replay(task, self._action_dims[task], saved.state["replay"])
                self._open = OpenEpisode(replay, saved.tensors["episode"]["actions"].numpy(), **state["episode"])
            self.run.truncate_logs(state["logs"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"checkpoint {saved.path} does not fit this run: {error!r}"[:300]) from error
        self._saved_frames = self.position.frames

    # A stage

    @contextmanager
    def _open_stage(self) -> Iterator[Stage]:
        """The stage's environments, replay and collector: new, or as the checkpoint left them."""
        number, task = self.position.stage, self.config.tasks[self.position.stage]
        with self._player(task) as (player, env), closing(make_env(task, self.config.env)) as eval_env:
            if task not in self.agent.tasks:
                self.agent.add_task(task, env.action_dim)
                self._action_dims[task] = env.action_dim
            opened, self._open = self._open, None
            replay = opened.replay if opened else self._open_replay(task, env.action_dim, None)
            collector = Collector(self.agent, env, task, replay, self.config.seed, number)
            if opened:
                player.submit(self._reopen_episode, collector, opened).result()
            draws = Draws(replay, self._rng, self.config.agent, self.agent.views)
            self._progress.begin_stage(task, self.position.frames, self.config.training.frames)
            yield Stage(task, eval_env, replay, collector, draws, player)

    @contextmanager
    def _player(self, task: str) -> Iterator[tuple[ThreadPoolExecutor, PixelEnv]]:
        """A thread, and an environment made, used and closed in it: an OpenGL context belongs to one thread."""
        with ThreadPoolExecutor(1, "player") as player:
            env = player.submit(make_env, task, self.config.env).result()
            try:
                yield player, env
            finally:
                player.submit(env.close).result()

    def _open_replay(self, task: str, action_dim: int, saved: dict[str, JSON] | None) -> Replay:
        settings, device = self.config.training, self.agent.device
        shape = (settings.replay_capacity, action_dim, self.config.env.image_size, self.config.env.frame_stack)
        fits = settings.replay_on == "auto" and fits_on_device(ring_bytes(*shape), device)
        on_device = settings.replay_on == "device" or fits
        folder = self.run.replay(task)
        if saved is None:
            return Replay(folder, *shape, device=device, frames_on_device=on_device)
        return Replay.restore(folder, saved, *shape, device=device, frames_on_device=on_device)

    def _reopen_episode(self, collector: Collector, opened: OpenEpisode) -> None:
        collector.reopen(opened.number, opened.actions)
        if collector.fingerprint() != opened.fingerprint:
            self._progress.say(
                "warning: the open episode shows other pixels than before (another machine or renderer?); "
                "the run goes on, but not exactly as if it had never stopped"
            )

    def _learn_stage(self, stage: Stage) -> None:
        if self._saved_frames is None:
            self._save(stage)  # from here on a killed run can be resumed
        while True:
            self._leave_if_asked(stage)
            if self._evaluation_due():
                self._evaluate(stage)
            if self.position.frames >= self.config.training.frames:
                break
            if self._crossed(self.config.training.checkpoint_every_frames, self._saved_frames or 0):
                self._save(stage)
            self._step(stage)
        self._count_minutes()
        self.position = self.position.next_stage()
        self._save(stage, ended=True)
        if self._stop.asked:
            self._stop.leave()

    def _step(self, stage: Stage) -> None:
        """One step of the task, and beside it the updates that the steps before it have earned."""
        settings, position = self.config.training, self.position
        learning = position.steps >= settings.seed_steps
        batches = stage.draws.take() if learning else []
        stage.player.submit(stage.collector.begin).result()
        action = stage.collector.choose(None if learning else self._rng)
        playing = stage.player.submit(self._play, stage, action)
        for batch in batches:
            self._update(stage, batch)
        frames, episode_return = playing.result()
        position.frames += frames
        position.steps += 1
        if episode_return is not None:
            self._averages.add({"return": episode_return})
        if position.steps % settings.log_every_steps == 0 or position.frames >= settings.frames:
            self._log(stage)
        self._progress.step(position.frames, episode_return)

    def _play(self, stage: Stage, action: Action) -> tuple[int, float | None]:
        """What happens beside the updates: the step, and the draw for the next ones if there will be any."""
        settings, position = self.config.training, self.position
        frames, episode_return = stage.collector.step(action)
        if position.steps + 1 >= settings.seed_steps and position.frames + frames < settings.frames:
            stage.draws.draw()
        return frames, episode_return

    def _update(self, stage: Stage, batch: Batch) -> None:
        started = time.monotonic()
        progress = min(1.0, self.position.frames / self.config.training.frames)
        self._averages.add(self.agent.update(stage.task, batch, progress))
        self._learning_seconds += time.monotonic() - started

    # Evaluation and logs

    def _evaluation_due(self) -> bool:
        last, now = self.position.evaluated, self.position.frames
        ended = now >= self.config.training.frames
        return last is None or (ended and last < now) or self._crossed(self.config.training.eval_every_frames, last)

    def _crossed(self, every: int, last: int) -> bool:
        return self.position.frames // every > last // every

    def _evaluate(self, stage: Stage) -> None:
        episodes, position, done = self.config.training.eval_episodes, self.position, 0

        def on_episode(_: float) -> None:
            nonlocal done
            done += 1
            self._progress.evaluating(done, episodes)

        self._progress.evaluating(0, episodes)
        try:
            returns = evaluate(
                self.agent,
                stage.eval_env,
                stage.task,
                episodes,
                self.config.seed,
                on_episode,
                should_stop=lambda: self._stop.asked,
            )
        except Abandoned:
            self._save(stage)
            self._stop.leave()
        position.evaluated = position.frames
        row: dict[str, JSON] = {
            "stage": position.stage,
            "task": stage.task,
            "kind": "final" if position.frames >= self.config.training.frames else "learn",
            "frames": position.frames,
            "steps": position.steps,
            "returns": returns,
            "mean": float(np.mean(returns)),
            "std": float(np.std(returns)),
            "minutes": self._count_minutes(),
        }
        self.run.append_eval(row)
        self._track(stage.task, "evaluation", {"mean": row["mean"], "std": row["std"]})
        self._draw()
        self._progress.evaluated(row)

    def _draw(self) -> None:
        path = self.run.path / CURVE
        try:
            write_atomic(path, learning_curve(self.run.path.name, self.run.read_evals()))
        except OSError as error:
            raise RunError(f"cannot write {path}: {reason(error)}; the checkpoints are intact") from error

    def _log(self, stage: Stage) -> None:
        now = time.monotonic()
        self.agent.check()
        means = self._averages.take()
        self.run.append_metrics(
            {
                "stage": self.position.stage,
                "task": stage.task,
                "frames": self.position.frames,
                "steps": self.position.steps,
                "updates": self.agent.updates,
                "episodes": stage.collector.episode,
                **means,
                "seconds": now - self._log_started,
                "learner_busy": self._learning_seconds / (now - self._log_started),
                "minutes": self._count_minutes(),
            }
        )
        self._log_started, self._learning_seconds = now, 0.0
        self._track(stage.task, "training", means)

    def _track(self, task: str, kind: str, values: Mapping[str, float]) -> None:
        for tracker in self._trackers:
            named = {f"{task}/{kind}/{name}": value for name, value in values.items()}
            tracker.log(named, self.position.earlier_frames + self.position.frames)

    def _count_minutes(self) -> float:
        now = time.monotonic()
        self.position.minutes += (now - self._clock_started) / 60
        self._clock_started = now
        return self.position.minutes

    # Saving

    def _leave_if_asked(self, stage: Stage) -> None:
        if self._stop.asked:
            self._save(stage)
            self._stop.leave()

    def _save(self, stage: Stage, ended: bool = False) -> None:
        """Write a checkpoint; of an ended stage the open episode is forgotten."""
        self._stop.saving()
        self.agent.check()
        self._count_minutes()
        collector = stage.collector
        actions = np.array([] if ended else collector.actions, np.float32)  # (T, A)
        trainer: dict[str, JSON] = {
            "position": dataclasses.asdict(self.position),
            "averages": self._averages.as_json(),
            "random": stage.draws.random_state,
            "action_dims": self._action_dims,
            "episode": None if ended else {"number": collector.episode, "fingerprint": collector.fingerprint()},
            "logs": self.run.log_positions(),
        }
        checkpoint.save(
            self.run.checkpoints,
            self.position.earlier_steps + self.position.steps,
            {**self.agent.tensors(), "episode": {"actions": torch.from_numpy(actions)}},
            {"trainer": trainer, "replay": stage.replay.flush()},
        )
        self._saved_frames = self.position.frames


def restore_agent(agent: SacAgent, saved: Checkpoint) -> dict[str, int]:
    """Give a new agent the tasks and tensors of a checkpoint; answers with the tasks' numbers of actions."""
    action_dims: dict[str, int] = saved.state["trainer"]["action_dims"]
    for task, action_dim in action_dims.items():
        agent.add_task(task, action_dim)
    agent.load_tensors(saved.tensors)
    return action_dims
