"""The curriculum loop: collect, update, evaluate, retest, checkpoint; and the way back into it after a stop.

A curriculum is a list of stages, each of one task or of several learnt together. Everything that decides what
happens next is in the agent's tensors, the replays and `TrainingProgress`; a checkpoint holds exactly these, so a
resumed run repeats bit for bit what an unbroken one would have done.

While the learner updates, a second thread plays one step and draws the batches of the next updates. The step's
action was chosen before the updates beside it began: a lag of one step's updates, always, and never a race.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from contextlib import closing, suppress

import numpy as np

from ctrlformer.agents import Agent, make_agent
from ctrlformer.agents.sac import losses
from ctrlformer.config import Config, TransferConfig
from ctrlformer.envs import make_env
from ctrlformer.envs.pixels import PixelEnv
from ctrlformer.errors import NonFiniteError, RenderError, RunError, TaskError
from ctrlformer.replay import rehearsal
from ctrlformer.replay.rehearsal import RehearsalBuffer
from ctrlformer.storage import checkpoint
from ctrlformer.storage.checkpoint import Checkpoint
from ctrlformer.storage.files import JSON, reason, write_atomic
from ctrlformer.storage.run_folder import Row, RunFolder
from ctrlformer.system.device import choose_device, use_compiler
from ctrlformer.training.callbacks import Callback, CallbackList, StepInfo
from ctrlformer.training.collect import Abandoned, evaluate
from ctrlformer.training.loggers import FOLDERS as LOGGER_FOLDERS
from ctrlformer.training.loggers import open_loggers
from ctrlformer.training.prefetch import PrefetchedBatch
from ctrlformer.training.progress import TrainingProgress
from ctrlformer.training.run_report import RunReport
from ctrlformer.training.signals import StopRequest
from ctrlformer.training.stage import Lane, SavedLane, Stage, StageOpener
from ctrlformer.training.state import LaneState, OpenEpisode, TrainerState, must_fit

REHEARSAL = 1  # marks the random numbers that choose the observations of a rehearsal buffer


class Trainer:
    """Trains the stages of a run folder's config, from the start or from its newest checkpoint."""

    def __init__(self, run: RunFolder, callbacks: Sequence[Callback], stop: StopRequest) -> None:
        self.run, self.config = run, run.config
        self._own_callbacks, self._callbacks = callbacks, CallbackList(callbacks)
        device = choose_device(self.config.training.device)
        compiled = use_compiler(self.config.training.compile, device, self._say)
        self.agent = make_agent(self.config, device, self.config.seed, compiled)
        self.progress = TrainingProgress()
        self._stop = stop
        self._opener = StageOpener(run, self.agent, self._say, lambda: self._stopping)
        self._saved_lanes: list[SavedLane] = []
        self._buffers: list[RehearsalBuffer] = []  # of the earlier stages' tasks
        self._saved_frames: int | None = None
        self._log_started = self._clock_started = time.monotonic()
        self._learning_seconds = 0.0  # inside updates since the last log row

    def learn(self) -> None:
        """Train every stage that is left, or until a callback stops it.

        After a signal it saves, then raises `KeyboardInterrupt` or `SystemExit`.
        """
        self.run.refuse_links(*LOGGER_FOLDERS)
        loggers = open_loggers(self.run.path, self.config, self.progress.frames, self._say)
        self._callbacks = CallbackList([*loggers, RunReport(self.run), *self._own_callbacks])
        try:
            while not self._finished and not self._stopping:
                saved, self._saved_lanes = self._saved_lanes, []
                with suppress(Abandoned), self._opener.open(self.progress.stage, saved, self._buffers) as stage:
                    self.progress.tasks = [lane.progress for lane in stage.lanes]
                    self._learn_stage(stage)
            if self._stop.asked:
                self._stop.leave()
        except (NonFiniteError, RenderError, TaskError) as error:
            raise type(error)(f"{error} (stopped in {self.run.path}; its last checkpoint is intact)") from error
        finally:
            self._callbacks.on_stop(self._finished)

    def _say(self, text: str) -> None:
        self._callbacks.on_message(text)

    @property
    def _finished(self) -> bool:
        return self.progress.stage >= len(self.config.stages)

    @property
    def _stopping(self) -> bool:
        """Whether a signal or a callback has asked the training to stop."""
        return self._stop.asked or self._callbacks.stop_asked

    def restore(self, saved: Checkpoint) -> None:
        """Stand where the checkpoint was written; a `CheckpointError` means that it does not fit this run."""
        state = restore_agent(self.agent, saved)
        self.progress = state.position
        self._opener.sources = state.sources
        self._buffers = [
            rehearsal.load(self.run.rehearsal_buffer(task), task, checksum, self.agent.outputs)
            for task, checksum in state.kept.items()
        ]
        with must_fit(saved.path):
            self._saved_lanes = [self._opener.saved_lane(saved, state, index) for index in range(len(state.lanes))]
        self.run.truncate_logs(state.logs)
        self._saved_frames = self.progress.frames

    # A stage

    def _learn_stage(self, stage: Stage) -> None:
        """Learn until the stage has ended, or something asks to stop."""
        self._callbacks.on_stage_start(stage.info)
        for lane in stage.lanes:
            self._log_probes(lane)
        if self._saved_frames is None:
            self._save(stage.lanes)  # from here on a killed run can be resumed
        while not self._stopping:
            try:
                for lane in stage.lanes:
                    if self._evaluation_due(stage, lane):
                        self._evaluate(stage, lane)
                if self._retest_due(stage):
                    self._retest(stage)
            except Abandoned:
                break
            if stage.ended:
                self._end(stage)
                return
            if _crossed(self.config.training.checkpoint_every_frames, self._saved_frames or 0, self.progress.frames):
                self._save(stage.lanes)
            self._step(stage, stage.next_lane)
        self._save(stage.lanes)

    def _end(self, stage: Stage) -> None:
        for lane in stage.lanes:
            self._buffers.append(self._store_observations(stage, lane))
            lane.replay.flush()
        self._save_encoder()
        self._count_minutes()
        ended, self.progress = stage.info, self.progress.next_stage()
        self._save([])
        self._callbacks.on_stage_end(ended)

    def _step(self, stage: Stage, lane: Lane) -> None:
        """Take one step of a task, and beside it make the updates that its steps before have earned."""
        settings, progress = self.config.training, lane.progress
        drawn = lane.batches.take() if lane.learns_after(progress.steps, settings.seed_steps) else []
        stage.player.submit(lane.collector.begin).result()
        action = lane.choose(settings.seed_steps)
        playing = stage.player.submit(lane.play, action, settings.seed_steps, stage.config.frames)
        for one in drawn:
            self._update(stage, lane, one)
        frames, episode_return = playing.result()
        progress.frames += frames
        progress.steps += 1
        if episode_return is not None:
            lane.averages.add({"return": episode_return})
            if progress.updates:
                lane.averages.add(self.agent.diagnose(lane.task, lane.replay))
        if progress.steps % settings.log_every_steps == 0 or progress.frames >= stage.config.frames:
            self._log(lane)
        self._callbacks.on_step(StepInfo(lane.task, stage.info, self.progress.frames, episode_return))

    def _update(self, stage: Stage, lane: Lane, drawn: PrefetchedBatch) -> None:
        started = time.monotonic()
        done = lane.updates_done(stage.config.frames)
        lane.averages.add(self.agent.update(lane.task, drawn.batch, done, drawn.rehearsal))
        lane.progress.updates += 1
        self._learning_seconds += time.monotonic() - started

    def _store_observations(self, stage: Stage, lane: Lane) -> RehearsalBuffer:
        """Store observations of a task just learnt with its policy's outputs: later stages are held to these."""
        place = (self.config.seed, self.progress.stage, stage.lanes.index(lane), REHEARSAL)
        shown = lane.replay.observations(np.random.default_rng(place), stage.config.transfer.kept_observations)
        file = self.run.rehearsal_buffer(lane.task)
        return rehearsal.store(file, lane.task, shown, self.agent.outputs(lane.task, shown))

    def _save_encoder(self) -> None:
        """Save the encoder as it is now, to compare it with those of later stages; a world model has none."""
        file, encoder = self.run.stage_encoder(self.progress.stage), self.agent.tensors().get("encoder")
        if encoder is None:
            return
        try:
            file.parent.mkdir(exist_ok=True)
            write_atomic(file, checkpoint.pack(encoder))
        except OSError as error:
            raise RunError(f"cannot write {file}: {reason(error)}; fix this and resume") from error

    # Probes, evaluations and retests

    def _log_probes(self, lane: Lane) -> None:
        """Log how old policies did in a new task, and what it starts from."""
        if lane.source is None:
            return
        chosen, heads = lane.source.task, self.agent.has_copied_heads(lane.task)
        for probe in lane.probes:
            more: Row = {"source": probe.policy, "chosen": chosen, "heads": heads}
            self._log_evaluation(lane.task, "probe", probe.frames, probe.steps, probe.returns, **more)
        copied = f"from {chosen}, with {'its' if heads else 'new'} heads" if chosen else "anew"
        self._say(f"{lane.task} starts {copied}")

    def _evaluation_due(self, stage: Stage, lane: Lane) -> bool:
        last, now = lane.progress.evaluated, lane.progress.frames
        ended = now >= stage.config.frames
        every = self.config.training.eval_every_frames
        return last is None or (ended and last < now) or _crossed(every, last, now)

    def _evaluate(self, stage: Stage, lane: Lane) -> None:
        final = lane.progress.frames >= stage.config.frames
        episodes = self.config.training.final_episodes if final else self.config.training.eval_episodes
        # Other episodes every time: of ten targets that happen to be hard, a whole curve would know nothing else. The
        # last ones are those of the retests and of `ctrlformer eval`, to compare with.
        returns = self._play(stage, lane.eval_env, episodes, first=0 if final else lane.progress.frames)
        lane.progress.evaluated = lane.progress.frames
        self._log_evaluation(
            lane.task, "final" if final else "learn", lane.progress.frames, lane.progress.steps, returns
        )

    def _retest_due(self, stage: Stage) -> bool:
        last, now, every = self.progress.retested, stage.frames, stage.config.transfer.retest_every_frames
        if not self._buffers:  # the first stage
            return False
        if stage.ended:
            return last is None or last < now
        return every is not None and (last is None or _crossed(every, last, now))

    def _retest(self, stage: Stage) -> None:
        """Score every earlier task with its own heads and the encoder as it is now."""
        steps = stage.next_lane.progress.steps
        for old in self._buffers[self.progress.retests :]:
            with closing(make_env(old.task, self.config.env)) as env:
                returns = self._play(stage, env, self.config.training.final_episodes)
            self.progress.retests += 1
            self._log_evaluation(old.task, "retest", stage.frames, steps, returns)
        self.progress.retested, self.progress.retests = stage.frames, 0

    def _play(self, stage: Stage, env: PixelEnv, episodes: int, first: int = 0) -> list[float]:
        """Return the scores of an evaluation; `Abandoned` if a stop is asked for: a resume repeats it."""
        try:
            return evaluate(
                self.agent,
                env,
                env.task,
                episodes,
                self.config.seed,
                lambda done: self._callbacks.on_evaluation_episode(done, episodes),
                should_stop=lambda: self._stopping,
                first=first,
            )
        except (RenderError, TaskError):
            self._save(stage.lanes)  # an evaluation changes nothing: a resume repeats it from its start
            raise

    def _log_evaluation(
        self, task: str, kind: str, frames: int, steps: int, returns: list[float], **more: JSON
    ) -> None:
        row: Row = {
            "stage": self.progress.stage,
            "task": task,
            "kind": kind,
            "frames": frames,
            "steps": steps,
            "returns": returns,
            "mean": float(np.mean(returns)),
            "std": float(np.std(returns)),
            "minutes": self._count_minutes(),
            **more,
        }
        self.run.append_eval(row)
        self._callbacks.on_evaluation(row, self.progress.frames)

    # Logs

    def _log(self, lane: Lane) -> None:
        self.agent.check()
        means = lane.averages.take() | self._drift()
        now = time.monotonic()
        row: Row = {
            "stage": self.progress.stage,
            "task": lane.task,
            "frames": lane.progress.frames,
            "steps": lane.progress.steps,
            "updates": self.agent.updates,
            "episodes": lane.collector.episode,
            **means,
            "seconds": now - self._log_started,
            "learner_busy": self._learning_seconds / (now - self._log_started),
            "minutes": self._count_minutes(),
        }
        self.run.append_metrics(row)
        self._log_started, self._learning_seconds = now, 0.0
        self._callbacks.on_log(row, self.progress.frames)

    def _drift(self) -> dict[str, float]:
        """Measure how far the features of earlier tasks have moved since their stages' ends, on stored observations."""
        drifts = {}
        for old in self._buffers:
            shown = old.shown()
            now = self.agent.outputs(old.task, shown.observations).features.cpu()
            drifts[f"drift/{old.task}"] = float(losses.squared_drift(now, shown.outputs.features, shown.spread).sqrt())
        return drifts

    def _count_minutes(self) -> float:
        now = time.monotonic()
        self.progress.minutes += (now - self._clock_started) / 60
        self._clock_started = now
        return self.progress.minutes

    # Saving

    def _save(self, lanes: list[Lane]) -> None:
        """Write a checkpoint; between two stages there are no lanes."""
        self._stop.saving()
        self.agent.check()
        self._count_minutes()
        trainer: dict[str, JSON] = {
            "position": dataclasses.asdict(self.progress),
            "action_dims": self.agent.action_dims,
            "kept": {old.task: old.checksum for old in self._buffers},
            "lanes": {lane.task: dataclasses.asdict(LaneState.capture(lane)) for lane in lanes},
            "logs": self.run.log_positions(),
            "sources": {task: dataclasses.asdict(source) for task, source in self._opener.sources.items()},
        }
        episodes = [OpenEpisode.capture(lane).tensors(index) for index, lane in enumerate(lanes)]
        tensors = {**self.agent.tensors(), "episodes": {k: v for each in episodes for k, v in each.items()}}
        checkpoint.save(self.run.checkpoints, self.progress.steps, tensors, {"trainer": trainer})
        self._saved_frames = self.progress.frames


def _crossed(every: int, last: int, now: int) -> bool:
    """Whether a multiple of `every` lies after `last` and not after `now`."""
    return now // every > last // every


def restore_agent(agent: Agent, saved: Checkpoint) -> TrainerState:
    """Give a new agent the tasks and tensors of a checkpoint; a `CheckpointError` means that they do not fit it."""
    state = TrainerState.read(saved, agent.config)
    transfers = _transfers(agent.config)
    with must_fit(saved.path):
        for task, action_dim in state.action_dims.items():
            agent.add_task(task, action_dim, transfers[task], state.sources.get(task))
        agent.load_tensors(saved.tensors)
    return state


def _transfers(config: Config) -> dict[str, TransferConfig | None]:
    """How each task was, or will be, added: those of the first stage without transfer."""
    return {
        task: stage.transfer if number else None for number, stage in enumerate(config.stages) for task in stage.tasks
    }
