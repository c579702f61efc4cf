"""The transfer matrix: what old policies, and random actions, score in new tasks before these are learnt.

From the rows of evals.jsonl of kind probe; every such row also says what the new task then started from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ctrlformer.analysis.metrics import ProbeScore, RunScores, score_cell
from ctrlformer.storage.files import JSON

STARTS = "starts from"  # heading of the matrix's last line


@dataclass(frozen=True)
class TransferMatrix:
    """Probes of one or more runs: policies by the new tasks they were tried in."""

    policies: tuple[str, ...]
    """Random actions first, then old tasks in the order of learning."""
    tasks: tuple[str, ...]
    """New tasks in the order of learning."""
    runs: tuple[tuple[ProbeScore, ...], ...]
    """The probes of every run."""

    def scores(self, policy: str, task: str) -> list[float]:
        """Mean returns of the policy in the task, one of each run that has probed it."""
        return [probe.score for run in self.runs for probe in run if (probe.policy, probe.task) == (policy, task)]

    def starts(self, task: str) -> dict[str, int]:
        """What the task started from, and in how many runs."""
        each = [next((probe.start for probe in run if probe.task == task), None) for run in self.runs]
        return dict(Counter(start for start in each if start is not None).most_common())

    def cells(self) -> list[list[str]]:
        """As text, headings first; the last line says what the tasks started from."""
        lines = [[policy, *(score_cell(self.scores(policy, task)) for task in self.tasks)] for policy in self.policies]
        return [
            ["policy", *(f"in {task}" for task in self.tasks)],
            *lines,
            [STARTS, *map(self.starts_text, self.tasks)],
        ]

    def starts_text(self, task: str) -> str:
        starts = self.starts(task)
        counted = [f"{start} ({count})" for start, count in starts.items()]
        return ", ".join(starts if len(starts) == 1 else counted)

    def to_json(self) -> dict[str, JSON]:
        return {
            "policies": self.policies,
            "tasks": self.tasks,
            "scores": [[self.scores(policy, task) for task in self.tasks] for policy in self.policies],
            "starts": [self.starts(task) for task in self.tasks],
        }


def transfer_matrix(runs: Sequence[RunScores]) -> TransferMatrix | None:
    """Of all these runs together; None if none has probes.

    >>> rows = [{"stage": 0, "task": "A", "kind": "final", "frames": 100, "mean": 9.0}]
    >>> probe = {"stage": 1, "task": "B", "kind": "probe", "chosen": "A", "heads": True}
    >>> rows += [probe | {"source": "random actions", "mean": 1.0}, probe | {"source": "A", "mean": 5.0}]
    >>> matrix = transfer_matrix([RunScores.of("run", 1, rows)])
    >>> matrix.cells() if matrix else None
    [['policy', 'in B'], ['random actions', '1.0'], ['A', '5.0'], ['starts from', 'A with its heads']]
    """
    probes = [probe for run in runs for probe in run.probes]
    if not probes:
        return None
    learnt = dict.fromkeys(task for run in runs for task in run.stages)
    probed = dict.fromkeys(probe.policy for probe in probes)
    policies = [policy for policy in probed if policy not in learnt] + [task for task in learnt if task in probed]
    tasks = dict.fromkeys(probe.task for probe in probes)
    return TransferMatrix(tuple(policies), tuple(tasks), tuple(run.probes for run in runs if run.probes))
