"""What callbacks of a real training hear, and how they stop it; both examples of docs/callbacks.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from small_runs import SETTINGS, SignalAt, assert_same, outcome, small_config, start

import ctrlformer
from ctrlformer.errors import ConfigError
from ctrlformer.storage.run_folder import Row, RunFolder
from ctrlformer.training import launch
from ctrlformer.training.callbacks import Callback, StageInfo, StepInfo, StopTraining

PAIR = ("toy/reach", "toy/slide")
PAGE = Path(__file__).parents[2] / "docs" / "callbacks.md"
FRAMES = 24


class Recorder(Callback):
    """Notes every call."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.steps: list[StepInfo] = []
        self.stages: list[StageInfo] = []
        self.logged: list[tuple[Row, int]] = []
        self.evaluated: list[tuple[Row, int]] = []
        self.episodes: list[tuple[int, int]] = []

    def on_stage_start(self, stage: StageInfo) -> None:
        self.events.append(f"start {stage.number}")

    def on_step(self, step: StepInfo) -> None:
        self.steps.append(step)

    def on_log(self, row: Row, total_frames: int) -> None:
        self.logged.append((row, total_frames))

    def on_evaluation_episode(self, done: int, episodes: int) -> None:
        self.episodes.append((done, episodes))

    def on_evaluation(self, row: Row, total_frames: int) -> None:
        self.evaluated.append((row, total_frames))
        self.events.append(f"{row['kind']} {row['task']}")

    def on_stage_end(self, stage: StageInfo) -> None:
        self.stages.append(stage)
        self.events.append(f"end {stage.number}")

    def on_stop(self, finished: bool) -> None:
        self.events.append("finished" if finished else "interrupted")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Recorder]:
    recorder = Recorder()
    config = small_config(*PAIR, training__frames=FRAMES)
    return start(tmp_path_factory.mktemp("callbacks") / "run", config, recorder), recorder


def test_a_callback_hears_of_everything_in_order(recorded: tuple[RunFolder, Recorder]) -> None:
    _, heard = recorded
    assert [event for event in heard.events if not event.startswith("learn")] == [
        "start 0",
        "final toy/reach",
        "end 0",
        "start 1",
        "final toy/slide",
        "retest toy/reach",
        "end 1",
        "finished",
    ]
    assert heard.stages == [StageInfo(i, (task,), FRAMES, FRAMES) for i, task in enumerate(PAIR)]
    assert [(step.task, step.total_frames) for step in heard.steps] == [
        (PAIR[frames > FRAMES], frames) for frames in range(2, 2 * FRAMES + 1, 2)
    ]
    assert heard.episodes == [(0, 1), (1, 1)] * len(heard.evaluated)


def test_rows_are_those_of_the_logs(recorded: tuple[RunFolder, Recorder]) -> None:
    run, heard = recorded
    assert [row for row, _ in heard.logged] == run.read_metrics()
    assert [row for row, _ in heard.evaluated] == run.read_evals()
    assert all(total == row["frames"] + FRAMES * row["stage"] for row, total in [*heard.logged, *heard.evaluated])


class StopsAt(Callback):
    """Stops the training in one kind of call."""

    def __init__(self, name: str, call: int) -> None:
        def stop(*_: Any) -> None:
            self._left -= 1
            if self._left == 0:
                raise StopTraining

        self._left = call
        setattr(self, name, stop)


STOPS = [
    ("on_stage_start", 1, "interrupted"),
    ("on_step", 17, "interrupted"),
    ("on_log", 1, "interrupted"),
    ("on_evaluation_episode", 3, "interrupted"),  # in the middle of an evaluation
    ("on_evaluation", 3, "interrupted"),  # the first stage's last
    ("on_evaluation", 6, "interrupted"),  # before the retest at the very end
    ("on_evaluation", 7, "finished"),
]


@pytest.mark.parametrize(("name", "call", "end"), STOPS)
def test_a_stopped_training_is_saved_and_resumes_exactly(
    name: str, call: int, end: str, recorded: tuple[RunFolder, Recorder], tmp_path: Path
) -> None:
    whole, _ = recorded
    after = Recorder()  # hears all, although the one before it stops the training
    run = start(tmp_path / "run", whole.config, StopsAt(name, call), after)
    assert after.events[-1] == end
    assert_same(outcome(launch.resume(run.path)), outcome(whole))


def test_an_interrupted_training_says_so(tmp_path: Path) -> None:
    heard = Recorder()
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", None, SignalAt(step=3), heard)
    assert heard.events[-1] == "interrupted"
    assert len(heard.steps) == 3


def test_an_error_in_a_callback_ends_the_training_and_the_checkpoint_stays(tmp_path: Path) -> None:
    class Failing(Callback):
        def on_step(self, step: StepInfo) -> None:
            if step.total_frames == 30:
                raise RuntimeError("a mistake")

    heard = Recorder()
    with pytest.raises(RuntimeError, match="a mistake"):
        start(tmp_path / "run", None, heard, Failing())
    assert heard.events[-1] == "interrupted"
    assert launch.resume(tmp_path / "run").stages_done() == 1


def test_what_is_no_callback_is_refused_before_a_folder_exists(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no ctrlformer\.Callback: make it a subclass"):
        launch.start(small_config(), tmp_path / "run", callbacks=[print])  # type: ignore[list-item]
    assert not (tmp_path / "run").exists()


# docs/callbacks.md


def example(heading: str) -> dict[str, Any]:
    """The names that an example of the page defines, without the training that it ends with."""
    section = PAGE.read_text().split(f"## {heading}\n")[1]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1].split("\nctrlformer.train(")[0], names)
    return names


def test_the_example_of_an_early_stop(tmp_path: Path) -> None:
    heard = Recorder()
    early = example("Stop at a score")["StopAtScore"](score=0.0)  # which any evaluation reaches
    run = ctrlformer.train(
        PAIR[0], preset="tiny", run=tmp_path / "run", overrides=SETTINGS, callbacks=[early, heard], quiet=True
    )
    assert heard.events == ["start 0", "learn toy/reach", "interrupted"]
    finished = ctrlformer.resume(run.path, callbacks=[heard], quiet=True)
    assert heard.events[-1] == "finished"
    ctrlformer.add(finished.path, PAIR[1], frames=FRAMES, callbacks=[heard], quiet=True)
    assert heard.events[-3:] == ["retest toy/reach", "end 1", "finished"]


def test_the_example_of_a_tracker(tmp_path: Path) -> None:
    names = example("Log to your own tracker")
    tracker = names["ToMyTracker"](tmp_path / "tracked.csv")
    run = ctrlformer.train(
        PAIR[0], preset="tiny", run=tmp_path / "run", overrides=SETTINGS, callbacks=[tracker], quiet=True
    )
    lines = (tmp_path / "tracked.csv").read_text().splitlines()
    scores = [line for line in lines if ",toy/reach/score," in line]
    assert [int(line.split(",")[0]) for line in scores] == [row["frames"] for row in run.read_evals()]
    assert any(",toy/reach/critic_loss," in line for line in lines)
