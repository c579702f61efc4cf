"""Plans: which runs, what they share, how they are named, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ctrlformer.config import Config, differences, to_json
from ctrlformer.config.presets import preset
from ctrlformer.errors import ConfigError, RunError
from ctrlformer.paper.experiments import EXPERIMENTS, SCALES, Curriculum
from ctrlformer.paper.plan import RUNS, Choice, Plan, PlannedRun, make_plan, state_of
from ctrlformer.storage.run_folder import RunFolder


def plan_of(experiment: str, scale: str = "cpu", **changes: Any) -> Plan:
    return make_plan(Choice(EXPERIMENTS[experiment], SCALES[scale], **changes))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_run_comes_after_the_one_it_goes_on_from(experiment: str, scale: str) -> None:
    plan = plan_of(experiment, scale, weights="weights.safetensors")
    seen: set[str] = set()
    for name, run in plan.runs.items():
        assert run.name == name
        assert run.parent is None or run.parent in seen
        assert (run.parent is None) == (len(run.config.stages) == 1)
        if run.parent:
            assert run.config.stages[:-1] == plan.runs[run.parent].config.stages
        seen.add(name)


def test_table_1_trains_the_first_task_once() -> None:
    plan = plan_of(
        "same_domain", tasks=["cartpole_swingup", "cartpole_swingup_sparse"], methods=["ctrlformer"], seeds=1
    )
    scratch = "cpu-ctrlformer-cartpole_swingup-100k-seed1"
    assert {name: run.parent for name, run in plan.runs.items()} == {
        scratch: None,
        "cpu-ctrlformer-cartpole_swingup_sparse-100k-seed1": None,
        "cpu-ctrlformer-cartpole_swingup-then-cartpole_swingup_sparse-100k-seed1": scratch,
    }
    added = plan.runs["cpu-ctrlformer-cartpole_swingup-then-cartpole_swingup_sparse-100k-seed1"]
    assert added.config.all_tasks == ("cartpole_swingup", "cartpole_swingup_sparse")
    assert (added.frames, added.steps) == (100_000, 12_500)


def test_experiments_share_runs_that_are_the_same() -> None:
    table, curves, bars = (
        set(plan_of(name, "paper").runs) for name in ("same_domain", "encoder_lr_curves", "effect_bars")
    )
    assert bars < table
    shared = curves & table
    assert {name.rpartition("-")[0] for name in shared} == {
        "paper-ctrlformer-cartpole_swingup-500k",
        "paper-ctrlformer-cartpole_swingup-then-cartpole_swingup_sparse-500k",  # the usual rate is one of the curves
    }
    assert len(curves) == 5 * (1 + 6)


def test_methods_with_the_same_settings_are_one() -> None:
    at_paper, at_cpu = (
        plan_of("contrastive_ablation", scale, tasks=["reacher_easy"], seeds=1) for scale in ("paper", "cpu")
    )
    assert list(at_paper.runs) == [
        "paper-ctrlformer_without_contrastive-reacher_easy-500k-seed1",
        "paper-ctrlformer-reacher_easy-500k-seed1",
    ]
    assert list(at_cpu.runs) == [
        "cpu-ctrlformer-reacher_easy-100k-seed1",  # compact is without the contrastive loss
        "cpu-ctrlformer_with_contrastive-reacher_easy-100k-seed1",
    ]
    contrastive = {run.method: run.config.agent.contrastive for run in at_cpu.runs.values()}
    assert contrastive == {"ctrlformer": False, "ctrlformer_with_contrastive": True}


def test_a_sequence_is_a_chain_and_together_is_one_run() -> None:
    plan = plan_of("sequence_of_four", "smoke")
    chain = plan.named_run("ctrlformer", plan.curricula[-1], 1)
    tasks = ("toy/slide", "toy/slide_sparse", "toy/reach", "toy/reach_sparse")
    assert chain is not None
    assert chain.config.all_tasks == tasks
    together = plan.named_run("ctrlformer", plan.curricula[-2], 1)
    assert together is not None
    assert (together.config.together, together.parent) == (True, None)
    assert together.frames == 4 * 60
    assert len(plan.runs) == 4 + 1 + 3


def test_methods_that_cannot_be_trained_are_left_out_with_a_word() -> None:
    plan = plan_of("same_domain", "paper")
    assert set(plan.methods) == {"drq", "dreamer", "ctrlformer"}
    assert [reason.split(":")[0] for reason in plan.left_out] == ["resnet50_sac is left out"]
    with_weights = plan_of("same_domain", "paper", weights="resnet.safetensors")
    assert "resnet50_sac" in with_weights.methods


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"methods": ["drk"]}, "did you mean 'drq'"),
        ({"tasks": ["walker_wlak"]}, "did you mean 'walker_walk'"),
        ({"tasks": ["cartpole_balance"]}, "unknown task of this experiment"),
        ({"methods": ["resnet50_sac"]}, "nothing is left to run.*--resnet-weights"),
        ({"seeds": 0}, "--seeds is 0"),
        ({"frames": 0}, "--frames is 0"),
    ],
)
def test_mistakes_are_one_clear_line(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        plan_of("same_domain", **changes)


class TestStates:
    PLAN = plan_of("manipulation", "smoke", methods=["ctrlformer"])

    def make(self, out: Path, run: PlannedRun, config: Config, stages_done: int = 0) -> Path:
        folder = RunFolder.create(out / RUNS / run.name, config).path
        (folder / "checkpoints" / "7").mkdir(parents=True)
        (folder / "checkpoints" / "last").write_text("7\n")
        (folder / "checkpoints" / "7" / "trainer.json").write_text(f'{{"position": {{"stage": {stages_done}}}}}')
        return folder

    def state(self, out: Path, run: PlannedRun) -> str:
        return state_of(out, run, self.PLAN.runs)

    def test_new_begun_and_finished(self, tmp_path: Path) -> None:
        first, second, transfer = self.PLAN.runs.values()
        self.make(tmp_path, first, first.config, stages_done=1)
        self.make(tmp_path, transfer, transfer.config, stages_done=1)
        assert [self.state(tmp_path, run) for run in (first, second, transfer)] == ["finished", "new", "begun"]

    def test_a_copy_that_was_cut_off_counts_as_new(self, tmp_path: Path) -> None:
        first, _, transfer = self.PLAN.runs.values()
        self.make(tmp_path, transfer, first.config, stages_done=1)
        assert self.state(tmp_path, transfer) == "new"

    def test_what_a_start_fills_in_is_no_other_setting(self, tmp_path: Path) -> None:
        first, *_ = self.PLAN.runs.values()
        training = dataclasses.replace(first.config.training, precision="fp32")
        self.make(tmp_path, first, dataclasses.replace(first.config, training=training))
        assert self.state(tmp_path, first) == "begun"

    def test_a_folder_with_other_settings_is_refused(self, tmp_path: Path) -> None:
        first, *_ = self.PLAN.runs.values()
        agent = dataclasses.replace(first.config.agent, discount=0.5)
        folder = self.make(tmp_path, first, dataclasses.replace(first.config, agent=agent))
        with pytest.raises(RunError, match=r"other settings than planned now \(agent.discount\): choose another --out"):
            self.state(tmp_path, first)
        assert "0.5" in (folder / "config.json").read_text()


def test_disk_is_that_of_replay_and_kept_observations() -> None:
    (run,) = plan_of("same_domain", "paper", tasks=["walker_stand"], methods=["ctrlformer"], seeds=1).runs.values()
    frame = 84 * 84 * 3
    assert run.disk() == 100_000 * frame + 2000 * 3 * frame  # 250,000 steps, of which the replay holds 100,000


def test_curricula_in_words() -> None:
    assert str(Curriculum(("a", "b", "c"))) == "a, then b, then c"
    assert "seed" in to_json(next(iter(TestStates.PLAN.runs.values())).config)


# Methods are what their names say


def config_of(experiment: str, method: str, scale: str = "cpu") -> Config:
    return next(iter(plan_of(experiment, scale, methods=[method], seeds=1).runs.values())).config


@pytest.mark.parametrize(
    ("experiment", "method", "preset_name", "changes"),
    [
        ("same_domain", "drq", "drq", {"agent.batch_size"}),
        ("contrastive_on_baselines", "drq_contrastive", "drq_contrastive", {"agent.batch_size"}),
        (
            "q_regularisation_ablation",
            "drq_without_q_regularisation",
            "drq",
            {"agent.batch_size", "agent.q_regularisation"},
        ),
    ],
)
def test_on_a_cpu_drq_has_its_own_settings_but_for_the_batch(
    experiment: str, method: str, preset_name: str, changes: set[str]
) -> None:
    found, own = config_of(experiment, method), preset(preset_name)
    assert set(differences(own.encoder, found.encoder)) == set()
    assert {f"agent.{name}" for name in differences(own.agent, found.agent)} == changes
    assert found.agent.batch_size == 128


@pytest.mark.parametrize("scale", SCALES)
def test_contrastive_rows_run_byol_with_its_ema_target(scale: str) -> None:
    for experiment, method in (("contrastive_ablation", "ctrlformer"), ("contrastive_on_baselines", "drq_contrastive")):
        agent = config_of(experiment, method, scale).agent
        assert (agent.contrastive, agent.contrastive_target) == (True, "ema")


def test_the_table_says_every_methods_batch() -> None:
    plan = plan_of("same_domain", methods=["drq", "ctrlformer"])
    assert {method: plan.batch_size(method) for method in plan.methods} == {"drq": 128, "ctrlformer": 128}
