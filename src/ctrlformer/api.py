"""The functions that `import ctrlformer` offers: train, resume, add, evaluate, load."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctrlformer.agents import Agent, Policy, make_agent
from ctrlformer.config.presets import make_config, overridden
from ctrlformer.envs import canonical_task, make_env
from ctrlformer.errors import ConfigError, TaskError
from ctrlformer.storage import checkpoint
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.system.device import choose_device
from ctrlformer.training import launch
from ctrlformer.training.callbacks import Callback
from ctrlformer.training.collect import evaluate as play_episodes
from ctrlformer.training.collect import record_video
from ctrlformer.training.console import console_progress
from ctrlformer.training.trainer import restore_agent


def train(
    tasks: str | Sequence[str],
    *,
    preset: str = "compact",
    frames: int | None = None,
    seed: int = 1,
    run: str | Path | None = None,
    together: bool = False,
    overrides: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
) -> RunFolder:
    """Learn one task, or several one after the other or `together`, in a new run folder.

    `overrides` takes what the command line takes as flags. `callbacks` are told of every step, log row and evaluation
    and can stop the training (docs/callbacks.md). Ctrl-C saves a checkpoint, then raises `KeyboardInterrupt`; `resume`
    continues.

    >>> import ctrlformer, tempfile
    >>> folder = tempfile.mkdtemp() + "/first"
    >>> overrides = {"training.seed_steps": 10, "agent.batch_size": 4}
    >>> run = ctrlformer.train("toy/reach", preset="tiny", frames=60, run=folder, overrides=overrides, quiet=True)
    >>> [(row["frames"], row["kind"]) for row in run.read_evals()]
    [(0, 'learn'), (60, 'final')]
    """
    names = [tasks] if isinstance(tasks, str) else tasks
    config = dataclasses.replace(make_config(names, preset, frames, seed, overrides or {}), together=together)
    with console_progress(quiet) as progress:
        return launch.start(config, Path(run) if run else None, callbacks=[progress, *callbacks])


def resume(run: str | Path, *, callbacks: Sequence[Callback] = (), quiet: bool = False) -> RunFolder:
    """Continue exactly where the run stopped, in the middle of an episode too; a finished run stays as it is."""
    with console_progress(quiet) as progress:
        return launch.resume(Path(run), callbacks=[progress, *callbacks])


def add(
    run: str | Path,
    task: str,
    *,
    frames: int | None = None,
    into: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
) -> RunFolder:
    """Learn one more task on top of a finished run, or of a copy of it at `into`.

    `overrides` takes settings of the transfer; the run's own hold for the others.

    >>> import ctrlformer, tempfile
    >>> folder = tempfile.mkdtemp() + "/grows"
    >>> overrides = {"training.seed_steps": 10, "training.final_episodes": 1, "agent.batch_size": 4}
    >>> run = ctrlformer.train("toy/reach", preset="tiny", frames=40, run=folder, overrides=overrides, quiet=True)
    >>> run = ctrlformer.add(folder, "toy/slide", overrides={"transfer.protect": "rehearse"}, quiet=True)
    >>> [(row["task"], row["kind"]) for row in run.read_evals() if row["frames"] == 40]
    [('toy/reach', 'final'), ('toy/slide', 'final'), ('toy/reach', 'retest')]
    """
    own = RunFolder.open(Path(run)).config
    # Without the tasks: what an added task starts from need not be known to those before it.
    config = overridden(dataclasses.replace(own, tasks=(), together=False, added=()), overrides or {}, ("transfer",))
    with console_progress(quiet) as progress:
        return launch.add(
            Path(run),
            task,
            frames=frames,
            transfer=config.transfer,
            into=Path(into) if into else None,
            callbacks=[progress, *callbacks],
        )


def evaluate(
    run: str | Path, *, task: str | None = None, episodes: int = 10, seed: int | None = None, video: bool = False
) -> list[Score]:
    """Scores with the mean action over `episodes` episodes, for every task the run has learnt or for one.

    `video` also films one more episode of each task into the run folder.

    >>> import ctrlformer, tempfile
    >>> folder = tempfile.mkdtemp() + "/evaluated"
    >>> overrides = {"training.seed_steps": 10, "agent.batch_size": 4}
    >>> run = ctrlformer.train("toy/reach", preset="tiny", frames=40, run=folder, overrides=overrides, quiet=True)
    >>> [(score.task, len(score.returns)) for score in ctrlformer.evaluate(folder, episodes=2)]
    [('toy/reach', 2)]
    """
    if type(episodes) is not int or episodes < 1:
        raise ConfigError(f"episodes is {episodes!r}: it must be at least 1")
    agent = load(run)
    wanted = [agent.known_task(task)] if task else agent.tasks
    seed = agent.config.seed if seed is None else seed
    scores = []
    for name in wanted:
        with closing(make_env(name, agent.config.env)) as env:
            returns = play_episodes(agent.learner, env, name, episodes, seed)
            film = agent.run.videos / f"{name.replace('/', '-')}.mp4" if video else None
            if film:
                record_video(agent.learner, env, name, seed, film)
            scores.append(Score(name, returns, film))
    return scores


@dataclass(frozen=True)
class Score:
    """How well one task is done.

    >>> print(Score("toy/reach", [10.0, 20.0]))
    toy/reach: 15.0 ± 5.0 over 2 episodes
    """

    task: str
    returns: list[float]
    video: Path | None = None

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        return float(np.std(self.returns))

    def __str__(self) -> str:
        film = f", video {self.video}" if self.video else ""
        return f"{self.task}: {self.mean:.1f} ± {self.std:.1f} over {len(self.returns)} episodes{film}"


def load(run: str | Path) -> TrainedAgent:
    """The agent of a run's newest checkpoint, ready to act.

    >>> import ctrlformer, tempfile
    >>> folder = tempfile.mkdtemp() + "/loaded"
    >>> overrides = {"training.seed_steps": 10, "agent.batch_size": 4}
    >>> run = ctrlformer.train("toy/reach", preset="tiny", frames=40, run=folder, overrides=overrides, quiet=True)
    >>> agent = ctrlformer.load(folder)
    >>> env = ctrlformer.make_env("toy/reach")
    >>> pixels, info = env.reset(seed=3)
    >>> agent.act(pixels, task="toy/reach").shape
    (2,)
    """
    return TrainedAgent(RunFolder.open(Path(run)))


class TrainedAgent:
    """An agent that acts and no longer learns."""

    def __init__(self, run: RunFolder) -> None:
        self.run, self.config = run, run.config
        self.learner = _restored_agent(run)
        self._policies: dict[str, Policy] = {}

    @property
    def tasks(self) -> list[str]:
        """The tasks it has learnt, in that order."""
        return list(self.learner.tasks)

    def act(self, pixels: NDArray[np.uint8], task: str | None = None) -> NDArray[np.float32]:
        """The mean action (A,) for one observation (84, 84, 9); without a task, for the newest one.

        Observations come in the order of their episode; `begin_episode` says where the next one starts.
        """
        if not self.tasks:
            raise TaskError(f"the agent of {self.run.path} has learnt no task yet")
        name = self.known_task(task) if task else self.tasks[-1]
        if name not in self._policies:
            self._policies[name] = self.learner.policy(name, explore=False)
        return self._policies[name](pixels)

    def begin_episode(self) -> None:
        """Forget the observations so far. An agent without a memory, all but Dreamer, does well without it."""
        self._policies = {}

    def known_task(self, task: str) -> str:
        """The canonical name of a task it has learnt; any other is a `TaskError`."""
        name = canonical_task(task)
        self.learner.policy(name, explore=False)
        return name


def _restored_agent(run: RunFolder) -> Agent:
    """The agent of the newest checkpoint that is sound and fits; each passed over is named in a warning."""
    device = choose_device(run.config.training.device)

    def restored(saved: checkpoint.Checkpoint) -> Agent:
        agent = make_agent(run.config, device, run.config.seed)
        restore_agent(agent, saved)
        return agent

    return checkpoint.load_as(restored, run.checkpoints)
