"""`ctrlformer reproduce`: from the plan to the table, with real trainings of toy tasks."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from small_resnets import write_weights

from ctrlformer.cli.main import main
from ctrlformer.paper.experiments import EXPERIMENTS, SCALES
from ctrlformer.paper.plan import RUNS, Choice, make_plan
from ctrlformer.sweep import time_estimate
from ctrlformer.sweep.time_estimate import Speed, hours, measure_speeds

ONE_RUN = make_plan(Choice(EXPERIMENTS["sequence_of_four"], SCALES["smoke"], tasks=["cartpole_balance"])).runs
SMOKE = ("--scale", "smoke", "--jobs", "0", "--skip-calibration", "--out")


def table(out: Path, experiment: str) -> list[dict[str, object]]:
    lines: list[dict[str, object]] = json.loads((out / f"{experiment}-smoke.json").read_text())["lines"]
    return lines


def test_an_experiment_end_to_end_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "contrastive_on_baselines", "--methods", "ctrlformer", *SMOKE, str(tmp_path)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "2 runs (2 new), 60 frames of each task, seeds 1 to 1" in said
    assert "(continues smoke-ctrlformer-toy_reach-60-seed1)" in said
    assert "| ctrlformer | 4 | walker_walk | transfer from walker_stand | 100,000 |" in said
    lines = table(tmp_path, "contrastive_on_baselines")
    assert [(line["protocol"], line["seeds"]) for line in lines] == [("retest", 1), ("transfer", 1)]
    assert {path.suffix for path in tmp_path.glob("*-smoke.*")} == {".md", ".csv", ".json", ".html"}
    page = (tmp_path / "contrastive_on_baselines-smoke.html").read_text()
    assert "<td>transfer from walker_stand</td>" in page
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "2 runs (2 finished)" in said
    assert "nothing is left to train" in said
    assert "running" not in said
    assert table(tmp_path, "contrastive_on_baselines") == lines


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experiments in one folder share runs, and so do these tests."""
    return tmp_path_factory.mktemp("reproduce")


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_at_scale_smoke(experiment: str, shared: Path) -> None:
    weights = write_weights(shared / "resnet.safetensors")
    assert main(["reproduce", experiment, *SMOKE, str(shared), "--resnet-weights", str(weights)]) == 0
    lines = table(shared, experiment)
    assert all(line["seeds"] == 1 for line in lines)
    planned = make_plan(Choice(EXPERIMENTS[experiment], SCALES["smoke"], weights=str(weights)))
    assert {line["method"] for line in lines} == set(planned.methods)
    assert set(planned.runs) <= {path.name for path in (shared / RUNS).iterdir()}


def test_a_failed_run_is_reported_and_the_rest_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / "broken.safetensors"
    weights.write_bytes(b"not weights")
    words = ["reproduce", "cross_domain", "--methods", "resnet50_sac,ctrlformer", "--tasks", "reacher_easy"]
    assert main([*words, "--resnet-weights", str(weights), *SMOKE, str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "[0/2] failed: smoke-resnet50_sac-toy_reach-60-seed1" in said
    assert "[1/2] finished: smoke-ctrlformer-toy_reach-60-seed1" in said
    assert said.splitlines()[-1].startswith("failed: smoke-resnet50_sac-toy_reach-60-seed1: encoder.weights")
    assert "| resnet50_sac | 4 | reacher_easy | scratch | 500,000 | not run |" in said


class TestPlan:
    def test_the_plan_alone_trains_nothing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "out"
        words = ["reproduce", "same_domain", "--plan", "--scale", "paper", "--skip-calibration", "--out", str(out)]
        assert main(words) == 0
        said = capsys.readouterr().out
        assert "180 runs (180 new), 500,000 frames of each task, seeds 1 to 5" in said
        assert "resnet50_sac is left out: it needs --resnet-weights FILE" in said
        assert "disk: about" in said
        assert not out.exists()

    def test_hours_come_from_real_updates(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["reproduce", "contrastive_on_baselines", "--plan", "--scale", "smoke", "--methods", "ctrlformer"]
        assert main([*words, "--jobs", "2", "--out", str(tmp_path)]) == 0
        said = capsys.readouterr().out
        assert "if 2 do not slow each other; a step takes: ctrlformer 0." in said
        assert list(tmp_path.iterdir()) == []

    def test_hours_are_steps_and_episodes(self) -> None:
        choice = Choice(EXPERIMENTS["same_domain"], SCALES["cpu"], ["ctrlformer"], ["walker_stand", "walker_walk"], 1)
        *_, transfer = make_plan(choice).runs.values()
        speed = Speed(step=0.1, episode=2.0, repeat=8)
        episodes = 10 * 5 + 10 + 10  # evaluations, the last one, a retest; a walker has 4 times the steps of a cartpole
        assert hours([transfer], {"ctrlformer": speed}) == pytest.approx((50_000 * 0.1 + episodes * 2.0 * 4) / 3600)

    def test_a_method_that_cannot_be_timed_is_told(self) -> None:
        (run,) = ONE_RUN.values()
        training = dataclasses.replace(run.config.training, device="abacus")
        broken = dataclasses.replace(run, config=dataclasses.replace(run.config, training=training))
        said: list[str] = []
        assert measure_speeds([broken], said.append) == {}
        assert hours([broken], {}) == 0
        assert said[0].startswith("ctrlformer could not be timed: training.device 'abacus'")

    def test_a_slow_method_is_not_timed_for_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time_estimate, "ENOUGH_SECONDS", 0.0)
        monkeypatch.setattr(time_estimate, "TIMED_STEPS", 10_000)
        (run,) = ONE_RUN.values()
        assert measure_speeds([run], print)["ctrlformer"].step > 0


def test_the_list_shows_every_experiment_with_its_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    said = capsys.readouterr().out
    for name, experiment in EXPERIMENTS.items():
        assert f"{name}: {experiment.shows}" in said
    assert "learns: cartpole_swingup, then cartpole_swingup_sparse" in said
    assert "at --scale smoke" in said


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "no experiment: name one of same_domain"),
        (["same_domian"], "did you mean 'same_domain'"),
        (["same_domain", "--scale", "papre"], "did you mean 'paper'"),
        (["same_domain", "--methods", "drk"], "did you mean 'drq'"),
        (["same_domain", "--jobs", "-1"], "--jobs is -1"),
        (["same_domain", "--retries", "-1"], "--retries is -1"),
        (["same_domain", "--cpus-per-run", "0"], "--cpus-per-run must be above 0"),
        (["same_domain", "--resnet-weights", "nowhere"], "there is no such file"),
    ],
)
def test_mistakes_are_one_line(words: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *words]) == 2
    error = capsys.readouterr().err
    assert part in error
    assert error.count("\n") == 1


def test_a_folder_with_other_settings_is_refused_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = make_plan(Choice(EXPERIMENTS["contrastive_on_baselines"], SCALES["smoke"], methods=["ctrlformer"]))
    first, *_ = plan.runs.values()
    folder = tmp_path / RUNS / first.name
    folder.mkdir(parents=True)
    other = json.dumps(dataclasses.asdict(dataclasses.replace(first.config, seed=9)))
    (folder / "config.json").write_text(other)
    words = ["reproduce", "contrastive_on_baselines", "--methods", "ctrlformer", *SMOKE, str(tmp_path)]
    assert main(words) == 2
    assert "other settings than planned now (seed)" in capsys.readouterr().err
