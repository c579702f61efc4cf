"""What many tasks cost: counted here, and only timed by the benchmark itself."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks import task_rows
from benchmarks.table import QUICK
from benchmarks.task_rows import Load, agent_with, kept_for_backward, measured
from benchmarks.update_rows import batch_for, one_thread, with_agent

EFFORT = dataclasses.replace(QUICK, repeats=1)


@pytest.fixture(scope="module")
def loads() -> dict[tuple[str, int], Load]:
    return {(load.attention, load.tasks): load for load in measured(EFFORT, "tiny", (1, 2, 5))}


def test_every_number_of_tasks_is_measured_with_both_kinds_of_attention(loads: dict[tuple[str, int], Load]) -> None:
    assert set(loads) == {(attention, tasks) for attention in ("joint", "causal") for tasks in (1, 2, 5)}
    assert all(load.first.median > 0 and load.newest.median > 0 for load in loads.values())


def test_each_task_adds_the_same_parameters(loads: dict[tuple[str, int], Load]) -> None:
    one, two, five = (loads["causal", tasks].parameters for tasks in (1, 2, 5))
    assert five - two == 3 * (two - one) > 0
    assert all(loads["joint", tasks].parameters == loads["causal", tasks].parameters for tasks in (1, 2, 5))


def test_the_agents_memory_grows_with_weights_targets_and_moments(loads: dict[tuple[str, int], Load]) -> None:
    one, two, five = (loads["causal", tasks] for tasks in (1, 2, 5))
    assert five.agent_bytes - two.agent_bytes == pytest.approx(3 * (two.agent_bytes - one.agent_bytes), rel=0.01)
    # every parameter that learns has its value and two moments
    assert two.agent_bytes - one.agent_bytes > 3 * 4 * (two.parameters - one.parameters)


def test_a_causal_first_task_keeps_no_more_memory_however_many_come_after() -> None:
    kept = {}
    with one_thread():
        for attention in ("joint", "causal"):
            config = task_rows._with_attention(with_agent("tiny"), attention)
            for count in (1, 6):
                agent = agent_with(count, config)
                kept[attention, count] = kept_for_backward(agent, agent.tasks[0], batch_for(agent))
    assert kept["joint", 6] > kept["joint", 1]
    assert kept["causal", 6] == kept["causal", 1]


def test_the_rows_compare_the_most_tasks_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = measured(EFFORT, "tiny", (1, 2, 5))
    monkeypatch.setattr(task_rows, "measured", lambda _: loads)
    first, newest = task_rows.first_task(EFFORT), task_rows.newest_task(EFFORT)
    causal = [load for load in loads if load.attention == "causal"]
    assert (first.ours, first.reference) == (causal[-1].first, causal[0].first)
    assert (newest.ours, newest.reference) == (causal[-1].newest, causal[0].newest)
    assert [row["tasks"] for row in first.figures] == [1, 2, 5, 1, 2, 5]
    assert task_rows.WITHIN.met_by(1 / 1.09)
    assert not task_rows.WITHIN.met_by(1 / 1.11)
