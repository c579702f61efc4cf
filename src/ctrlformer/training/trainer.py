"""The curriculum loop: collect, update, evaluate, retest, checkpoint; and the way back into it after a stop.

A curriculum is a list of stages, each of one task or of several learnt together. Everything that decides what
happens next is in the agent's tensors, the replays and `Position`; a checkpoint holds exactly these, so a resumed
run repeats bit for bit what an unbroken one would have done.

While the learner updates, a second thread plays one step and draws the batches of the next updates. The step's
action was chosen before the updates beside it began: a lag of one step's updates, always, and never a race.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import NoReturn

import numpy as np

from ctrlformer.agents import Agent, make_agent
from ctrlformer.agents.sac import losses
from ctrlformer.config import Config, TransferConfig
from ctrlformer.envs import make_env
from ctrlformer.envs.pixels import PixelEnv
from ctrlformer.errors import NonFiniteError, RenderError, RunError, TaskError
from ctrlformer.replay import rehearsal
from ctrlformer.replay.rehearsal import Kept
from ctrlformer.report.learning_curve import learning_curve
from ctrlformer.report.page import REPORT, write_report
from ctrlformer.storage import checkpoint
from ctrlformer.storage.checkpoint import Checkpoint
from ctrlformer.storage.files import JSON, reason, write_atomic
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.system.device import choose_device, use_compiler
from ctrlformer.training.collect import Abandoned, evaluate
from ctrlformer.training.console import Progress
from ctrlformer.training.loggers import FOLDERS as TRACKER_FOLDERS
from ctrlformer.training.loggers import Tracker, open_trackers
from ctrlformer.training.position import Position
from ctrlformer.training.prefetch import Drawn
from ctrlformer.training.signals import StopRequest
from ctrlformer.training.stage import Lane, SavedLane, Stage, StageOpener
from ctrlformer.training.state import TrainerState, must_fit

CURVE = "curve.png"
KEEP = 1  # marks the random numbers that choose which observations are kept


class Trainer:
    """Learns the stages of a run folder's config, from the start or from its newest checkpoint."""

    def __init__(self, run: RunFolder, progress: Progress, stop: StopRequest) -> None:
        self.run, self.config = run, run.config
        device = choose_device(self.config.training.device)
        compiled = use_compiler(self.config.training.compile, device, progress.say)
        self.agent = make_agent(self.config, device, self.config.seed, compiled)
        self.position = Position()
        self._progress, self._stop = progress, stop
        self._opener = StageOpener(run, self.agent, progress.say)
        self._saved_lanes: list[SavedLane] = []
        self._kept: list[Kept] = []  # of the earlier stages' tasks
        self._saved_frames: int | None = None
        self._log_started = self._clock_started = time.monotonic()
        self._learning_seconds = 0.0  # inside updates since the last log row
        self._trackers: list[Tracker] = []

    def learn(self) -> None:
        """Every stage that is left; raises `KeyboardInterrupt` or `SystemExit` after a signal, when all is saved."""
        with ExitStack() as stack:
            self.run.keep_inside(*TRACKER_FOLDERS)
            for tracker in open_trackers(self.run.path, self.config, self.position.frames, self._progress.say):
                self._trackers.append(stack.enter_context(closing(tracker)))
            try:
                while self.position.stage < len(self.config.stages):
                    saved, self._saved_lanes = self._saved_lanes, []
                    with self._opener.open(self.position.stage, saved, self._kept) as stage:
                        self.position.tasks = [lane.position for lane in stage.lanes]
                        self._learn_stage(stage)
            except (NonFiniteError, RenderError, TaskError) as error:
                raise type(error)(f"{error} (stopped in {self.run.path}; its last checkpoint is kept)") from error

    def restore(self, saved: Checkpoint) -> None:
        """Stand where the checkpoint was written; a `CheckpointError` means that it does not fit this run."""
        state = restore_agent(self.agent, saved)
        self.position = state.position
        self._kept = [
            rehearsal.load(self.run.kept(task), task, checksum, self.agent.outputs)
            for task, checksum in state.kept.items()
        ]
        with must_fit(saved.path):
            self._saved_lanes = [self._saved_lane(saved, state, index) for index in range(len(state.lanes))]
        self.run.truncate_logs(state.logs)
        self._saved_frames = self.position.frames

    def _saved_lane(self, saved: Checkpoint, state: TrainerState, index: int) -> SavedLane:
        task, lane = list(state.lanes.items())[index]
        memory = state.memory(saved, index)
        self.agent.policy(task, explore=True, memory=memory)  # refuses a memory that is not its own
        return SavedLane(
            state.position.tasks[index],
            lane.restored_averages(),
            lane.random,
            self._opener.replay(task, state.action_dims[task], lane.replay),
            lane.episode,
            lane.fingerprint,
            state.actions(saved, index),
            memory,
        )

    # A stage

    def _learn_stage(self, stage: Stage) -> None:
        self._show_stage(stage)
        if self._saved_frames is None:
            self._save(stage.lanes)  # from here on a killed run can be resumed
        while True:
            if self._stop.asked:
                self._save_and_leave(stage)
            for lane in stage.lanes:
                if self._evaluation_due(stage, lane):
                    self._evaluate(stage, lane)
            if self._retest_due(stage):
                self._retest(stage)
            if stage.ended:
                break
            if _crossed(self.config.training.checkpoint_every_frames, self._saved_frames or 0, self.position.frames):
                self._save(stage.lanes)
            self._step(stage, stage.hindmost)
        self._end(stage)

    def _end(self, stage: Stage) -> None:
        for lane in stage.lanes:
            self._kept.append(self._keep(stage, lane))
            lane.replay.flush()
        self._keep_encoder()
        self._count_minutes()
        self.position = self.position.next_stage()
        self._save([])
        if self._stop.asked:
            self._stop.leave()

    def _step(self, stage: Stage, lane: Lane) -> None:
        """One step of a task, and beside it the updates that its steps before have earned."""
        settings, position = self.config.training, lane.position
        drawn = lane.draws.take() if lane.learns_after(position.steps, settings.seed_steps) else []
        stage.player.submit(lane.collector.begin).result()
        action = lane.choose(settings.seed_steps)
        playing = stage.player.submit(lane.play, action, settings.seed_steps, stage.config.frames)
        for one in drawn:
            self._update(stage, lane, one)
        frames, episode_return = playing.result()
        position.frames += frames
        position.steps += 1
        if episode_return is not None:
            lane.averages.add({"return": episode_return})
        if position.steps % settings.log_every_steps == 0 or position.frames >= stage.config.frames:
            self._log(lane)
        self._progress.step(sum(lane.position.frames for lane in stage.lanes), episode_return)

    def _update(self, stage: Stage, lane: Lane, drawn: Drawn) -> None:
        started = time.monotonic()
        progress = lane.progress(stage.config.frames)
        lane.averages.add(self.agent.update(lane.task, drawn.batch, progress, drawn.rehearsal))
        lane.position.updates += 1
        self._learning_seconds += time.monotonic() - started

    def _keep(self, stage: Stage, lane: Lane) -> Kept:
        """Observations of a task just learnt, with what its policy makes of them: later stages are held to these."""
        place = (self.config.seed, self.position.stage, stage.lanes.index(lane), KEEP)
        shown = lane.replay.observations(np.random.default_rng(place), stage.config.transfer.kept_observations)
        return rehearsal.keep(self.run.kept(lane.task), lane.task, shown, self.agent.outputs(lane.task, shown))

    def _keep_encoder(self) -> None:
        """What the encoder is now, to be compared with what later stages make of it; a world model has none."""
        file, encoder = self.run.stage_encoder(self.position.stage), self.agent.tensors().get("encoder")
        if encoder is None:
            return
        try:
            file.parent.mkdir(exist_ok=True)
            write_atomic(file, checkpoint.pack(encoder))
        except OSError as error:
            raise RunError(f"cannot write {file}: {reason(error)}; mend this and resume") from error

    # Evaluations and retests

    def _evaluation_due(self, stage: Stage, lane: Lane) -> bool:
        last, now = lane.position.evaluated, lane.position.frames
        ended = now >= stage.config.frames
        every = self.config.training.eval_every_frames
        return last is None or (ended and last < now) or _crossed(every, last, now)

    def _evaluate(self, stage: Stage, lane: Lane) -> None:
        final = lane.position.frames >= stage.config.frames
        episodes = self.config.training.final_episodes if final else self.config.training.eval_episodes
        returns = self._play(stage, lane.eval_env, episodes)
        lane.position.evaluated = lane.position.frames
        self._note(lane.task, "final" if final else "learn", lane.position.frames, lane.position.steps, returns)

    def _retest_due(self, stage: Stage) -> bool:
        last, now, every = self.position.retested, stage.frames, stage.config.transfer.retest_every_frames
        if not self._kept:  # the first stage
            return False
        if stage.ended:
            return last is None or last < now
        return every is not None and (last is None or _crossed(every, last, now))

    def _retest(self, stage: Stage) -> None:
        """Score every earlier task with its own heads and the encoder as it is now."""
        steps = stage.hindmost.position.steps
        for old in self._kept[self.position.retests :]:
            with closing(make_env(old.task, self.config.env)) as env:
                returns = self._play(stage, env, self.config.training.final_episodes)
            self.position.retests += 1
            self._note(old.task, "retest", stage.frames, steps, returns)
        self.position.retested, self.position.retests = stage.frames, 0

    def _play(self, stage: Stage, env: PixelEnv, episodes: int) -> list[float]:
        done = 0

        def on_episode(_: float) -> None:
            nonlocal done
            done += 1
            self._progress.evaluating(done, episodes)

        self._progress.evaluating(0, episodes)
        try:
            return evaluate(
                self.agent, env, env.task, episodes, self.config.seed, on_episode, should_stop=lambda: self._stop.asked
            )
        except Abandoned:
            self._save_and_leave(stage)
        except (RenderError, TaskError):
            self._save(stage.lanes)  # an evaluation changes nothing: a resume repeats it from its start
            raise

    def _note(self, task: str, kind: str, frames: int, steps: int, returns: list[float]) -> None:
        row: dict[str, JSON] = {
            "stage": self.position.stage,
            "task": task,
            "kind": kind,
            "frames": frames,
            "steps": steps,
            "returns": returns,
            "mean": float(np.mean(returns)),
            "std": float(np.std(returns)),
            "minutes": self._count_minutes(),
        }
        self.run.append_eval(row)
        self._track(task, "retest" if kind == "retest" else "evaluation", {"mean": row["mean"], "std": row["std"]})
        self._draw()
        self._progress.evaluated(row)

    # Logs

    def _show_stage(self, stage: Stage) -> None:
        tasks = len(stage.lanes)
        frames = sum(lane.position.frames for lane in stage.lanes)
        self._progress.begin_stage(" + ".join(stage.config.tasks), frames, tasks * stage.config.frames)

    def _draw(self) -> None:
        path = self.run.path / CURVE
        write_report([self.run.path], self.run.path / REPORT)  # checks the rows, and names one that makes no sense
        try:
            write_atomic(path, learning_curve(self.run.path.name, self.run.read_evals()))
        except OSError as error:
            raise RunError(f"cannot write {path}: {reason(error)}; the checkpoints are intact") from error
        gc.collect()  # a drawn figure holds itself in a circle: some MB that Python would find only after many of them

    def _log(self, lane: Lane) -> None:
        self.agent.check()
        means = lane.averages.take() | self._drift()
        now = time.monotonic()
        self.run.append_metrics(
            {
                "stage": self.position.stage,
                "task": lane.task,
                "frames": lane.position.frames,
                "steps": lane.position.steps,
                "updates": self.agent.updates,
                "episodes": lane.collector.episode,
                **means,
                "seconds": now - self._log_started,
                "learner_busy": self._learning_seconds / (now - self._log_started),
                "minutes": self._count_minutes(),
            }
        )
        self._log_started, self._learning_seconds = now, 0.0
        self._track(lane.task, "training", means)

    def _drift(self) -> dict[str, float]:
        """How far every earlier task's features have moved since its stage's end, on observations kept then."""
        drifts = {}
        for old in self._kept:
            shown = old.shown()
            now = self.agent.outputs(old.task, shown.observations).features.cpu()
            drifts[f"drift/{old.task}"] = float(losses.squared_drift(now, shown.outputs.features, shown.spread).sqrt())
        return drifts

    def _track(self, task: str, kind: str, values: Mapping[str, float]) -> None:
        for tracker in self._trackers:
            named = {f"{task}/{kind}/{name}": value for name, value in values.items()}
            tracker.log(named, self.position.frames)

    def _count_minutes(self) -> float:
        now = time.monotonic()
        self.position.minutes += (now - self._clock_started) / 60
        self._clock_started = now
        return self.position.minutes

    # Saving

    def _save_and_leave(self, stage: Stage) -> NoReturn:
        self._save(stage.lanes)
        self._stop.leave()

    def _save(self, lanes: list[Lane]) -> None:
        """Write a checkpoint; between two stages there are no lanes."""
        self._stop.saving()
        self.agent.check()
        self._count_minutes()
        trainer: dict[str, JSON] = {
            "position": dataclasses.asdict(self.position),
            "action_dims": self.agent.action_dims,
            "kept": {old.task: old.checksum for old in self._kept},
            "lanes": {lane.task: lane.state() for lane in lanes},
            "logs": self.run.log_positions(),
        }
        episodes = {f"{index}": lane.actions() for index, lane in enumerate(lanes)}
        memories = {f"{index}/memory": lane.collector.memory for index, lane in enumerate(lanes)}
        episodes |= {name: memory for name, memory in memories.items() if memory is not None}
        checkpoint.save(
            self.run.checkpoints,
            self.position.steps,
            {**self.agent.tensors(), "episodes": episodes},
            {"trainer": trainer},
        )
        self._saved_frames = self.position.frames


def _crossed(every: int, last: int, now: int) -> bool:
    """Whether a multiple of `every` lies after `last` and not after `now`."""
    return now // every > last // every


def restore_agent(agent: Agent, saved: Checkpoint) -> TrainerState:
    """Give a new agent the tasks and tensors of a checkpoint; a `CheckpointError` means that they do not fit it."""
    state = TrainerState.read(saved, agent.config)
    transfers = _transfers(agent.config)
    with must_fit(saved.path):
        for task, action_dim in state.action_dims.items():
            agent.add_task(task, action_dim, transfers[task])
        agent.load_tensors(saved.tensors)
    return state


def _transfers(config: Config) -> dict[str, TransferConfig | None]:
    """How each task was, or will be, added: those of the first stage without transfer."""
    return {
        task: stage.transfer if number else None for number, stage in enumerate(config.stages) for task in stage.tasks
    }
