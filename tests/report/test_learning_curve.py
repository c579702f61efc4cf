"""The learning curve as a picture."""

from __future__ import annotations

from ctrlformer.report.learning_curve import learning_curve


def test_names_are_no_formulas_and_rows_may_lack_a_deviation() -> None:
    row = {"task": r"$\frac{$ _", "kind": "learn", "frames": 0, "mean": 3.0}
    assert learning_curve("run", [row, row | {"kind": "probe", "task": "b"}]) == learning_curve("run", [row])
    for std in (None, "x", -1.0, float("nan"), 10**400, 2):
        assert learning_curve(r"a $\run{", [row, row | {"frames": 2, "std": std}]).startswith(b"\x89PNG")
