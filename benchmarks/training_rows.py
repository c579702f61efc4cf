"""A whole training of `compact`: how busy its learner is, and how it compares with its parts and with a peer."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.peers import sb3_training
from benchmarks.table import Effort, Sample, SpeedComparison
from ctrlformer.agents import SacAgent
from ctrlformer.config import Config
from ctrlformer.config.presets import preset
from ctrlformer.envs import make_env
from ctrlformer.envs.tasks import action_repeat
from ctrlformer.replay import Replay
from ctrlformer.storage.run_folder import Row
from ctrlformer.training import launch
from ctrlformer.training.prefetch import BatchPrefetcher

TASK = "cartpole_swingup"
SEED_STEPS = 300
ROW_STEPS = 20  # between two rows of metrics.jsonl
PART_REPEATS = 10
PEER_SHARE = 4  # the peer is measured over a part of the steps: its updates take longer


class Figures(NamedTuple):
    frames_per_minute: Sample
    busy: Sample  # the share of time in which the learner learns
    parts: Sample  # seconds of one step's parts, one after another


def busy(effort: Effort) -> SpeedComparison:
    figures = _measured(effort)
    note = (
        f"share of the wall time that the learner spends in updates, from metrics.jsonl, over {effort.learnt_steps}"
        f" steps of {TASK} after {SEED_STEPS} random ones, no evaluation among them; the reference is all of it"
    )
    return SpeedComparison(figures.busy, Sample.of([1.0]), "share", note, more_is_better=True)


def beside_parts(effort: Effort) -> SpeedComparison:
    figures = _measured(effort)
    reference = figures.parts.each(lambda seconds: 60 * action_repeat(TASK) / seconds)
    note = f"{TASK}; the reference is environment step, policy, sample and update timed alone, and added up"
    return SpeedComparison(figures.frames_per_minute, reference, "frames/min", note, more_is_better=True)


def beside_sb3(effort: Effort) -> SpeedComparison:
    figures, config = _measured(effort), preset("compact")
    with closing(make_env(TASK, config.env)) as env:
        steps = max(effort.repeats, effort.learnt_steps // PEER_SHARE)
        seconds = sb3_training(env, config, SEED_STEPS, steps, effort.repeats)
    reference = seconds.each(lambda taken: 60 * action_repeat(TASK) / taken)
    note = (
        f"{TASK} in our environment; SAC with CnnPolicy, its NatureCNN, batch {config.agent.batch_size}, one update a"
        f" step, {steps} steps"
    )
    return SpeedComparison(figures.frames_per_minute, reference, "frames/min", note, more_is_better=True)


@functools.cache
def _measured(effort: Effort) -> Figures:
    """One training for all rows, its parts timed before and after."""
    config = training_config(effort.learnt_steps)
    before = part_seconds(config)
    with tempfile.TemporaryDirectory() as folder:
        rows = launch.start(config, Path(folder, "run")).read_metrics()
    after = part_seconds(config)
    return Figures(*learning_figures(rows), Sample.of([before, after]))


def training_config(learnt_steps: int) -> Config:
    """The compact preset for a few steps, with no evaluation or checkpoint among them."""
    config = preset("compact")
    frames = (SEED_STEPS + learnt_steps) * action_repeat(TASK)
    settings = dataclasses.replace(
        config.training,
        frames=frames,
        seed_steps=SEED_STEPS,
        log_every_steps=ROW_STEPS,
        eval_every_frames=frames,
        eval_episodes=1,
        final_episodes=1,
        checkpoint_every_frames=frames,
        tensorboard=False,
    )
    return dataclasses.replace(config, tasks=(TASK,), training=settings)


def learning_figures(rows: Sequence[Row]) -> tuple[Sample, Sample]:
    """Frames a minute and the learner's busy share, of the rows in which every step was followed by its update."""
    speeds, shares = [], []
    for before, row in itertools.pairwise(rows):
        if before["updates"] > 0:
            speeds.append(60 * (row["frames"] - before["frames"]) / row["seconds"])
            shares.append(row["learner_busy"])
    return Sample.of(speeds), Sample.of(shares)


def part_seconds(config: Config) -> float:
    """Environment step, policy, sample and update, each timed alone: the sum of their medians."""
    with closing(make_env(TASK, config.env)) as env:
        agent = SacAgent(config)
        agent.add_task(TASK, env.action_dim)
        replay = Replay(None, SEED_STEPS, env.action_dim, config.env.image_size, config.env.frame_stack)
        pixels, _ = env.reset(seed=0)
        replay.begin(pixels[..., -3:])
        action = np.zeros(env.action_dim, np.float32)
        for _ in range(PART_REPEATS):
            pixels, reward, *_ = env.step(action)
            replay.add(action, reward, False, pixels[..., -3:])
        policy = agent.policy(TASK, explore=True)
        draws = BatchPrefetcher(replay, np.random.default_rng(0), agent.draw, config.agent.updates_per_step)
        (drawn,) = draws.take()
        parts: list[Callable[[], object]] = [
            lambda: env.step(action),
            lambda: policy(pixels),
            draws.draw,
            lambda: agent.update(TASK, drawn.batch),
        ]
        return sum(_median_seconds(part) for part in parts)


def _median_seconds(part: Callable[[], object]) -> float:
    taken = []
    for _ in range(PART_REPEATS):
        started = time.perf_counter()
        part()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)
