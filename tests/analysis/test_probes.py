"""The transfer matrix, and that probes are no scores."""

from __future__ import annotations

import pytest
from scored_runs import SEQUENCE, Row, row

from ctrlformer.analysis.metrics import RunScores, average_over_tasks, learning_curve, retest_matrix
from ctrlformer.analysis.probes import transfer_matrix
from ctrlformer.errors import RunError

RANDOM = "random actions"


def probe(task: str, policy: str, mean: float, chosen: str, heads: bool = True) -> Row:
    return row(1, task, "probe", 8, mean) | {"source": policy, "chosen": chosen, "heads": heads}


PROBES = [
    probe("b", RANDOM, 5.0, "a"),
    probe("b", "a", 50.0, "a"),
    probe("c", RANDOM, 7.0, "a", heads=False),
    probe("c", "b", 6.0, "a", heads=False),
    probe("c", "a", 4.0, "a", heads=False),
]


def run_of(seed: int, probes: list[Row]) -> RunScores:
    return RunScores.of(f"run{seed}", seed, [*SEQUENCE, *probes])


def test_policies_by_new_tasks_over_runs() -> None:
    others = [probe("b", RANDOM, 7.0, "a"), probe("b", "a", 70.0, "a"), probe("c", RANDOM, 9.0, "b")]
    matrix = transfer_matrix([run_of(1, PROBES), run_of(2, others), run_of(3, [])])
    assert matrix is not None
    assert matrix.cells() == [
        ["policy", "in b", "in c"],
        [RANDOM, "6.0 ± 1.0", "8.0 ± 1.0"],
        ["a", "60.0 ± 10.0", "4.0"],  # in the order of learning, not of probing
        ["b", "", "6.0"],
        ["starts from", "a with its heads", "a with new heads (1), b with its heads (1)"],
    ]
    assert matrix.to_json()["scores"] == [[[5.0, 7.0], [7.0, 9.0]], [[50.0, 70.0], [4.0]], [[], [6.0]]]


def test_without_probes_there_is_no_matrix() -> None:
    assert transfer_matrix([run_of(1, [])]) is None


def test_probes_are_no_scores() -> None:
    plain, probed = run_of(1, []), run_of(1, PROBES)
    assert probed.rows == plain.rows
    assert probed.stages == plain.stages
    assert average_over_tasks(probed) == average_over_tasks(plain)
    assert learning_curve(probed, "b").frames.tolist() == [0.0, 100.0]
    assert retest_matrix(probed).shape == (3, 3)


@pytest.mark.parametrize("name", ["source", "chosen", "task"])
def test_a_probe_that_makes_no_sense_is_one_line(name: str) -> None:
    for value in (None, "", "a\nb", 3):
        with pytest.raises(RunError, match=f"evaluation 1: {name} is "):
            RunScores.of("run", 1, [probe("b", "a", 1.0, "a") | {name: value}])
