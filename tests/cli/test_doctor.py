"""The doctor reports, survives what it examines, and ends with a verdict."""

from __future__ import annotations

import pytest

from ctrlformer.cli import doctor


def test_a_machine_that_can_run_the_tests_is_ready() -> None:
    lines: list[str] = []
    assert doctor.run_doctor(lines.append) == 0
    assert lines[-1] == "ready"
    named = {line[:18].strip(): line[18:].strip() for line in lines}
    for name in ("python", "torch", "cores", "memory", "disk", "GL egl", "GL osmesa", "GL osmesa-wheel", "bf16"):
        assert named[name]
    assert "GFLOPS" in named["fp32"]
    assert len(named["pixel fingerprint"]) == 16


# Children that answer as a good machine's would, without the seconds that real ones take.
DRAWS = """print('{"backend": "egl", "fingerprint": "0123456789abcdef", "milliseconds": 1.0}')"""
COMPUTES = """print('{"gflops": 9.0, "gpu": null}')"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A good machine, of which a test breaks one part."""
    monkeypatch.setattr(doctor, "GL_CHILD", DRAWS)
    monkeypatch.setattr(doctor, "PRECISION_CHILD", COMPUTES)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delenv("PYOPENGL_PLATFORM", raising=False)
    return monkeypatch


def examine() -> tuple[int, list[str]]:
    lines: list[str] = []
    return doctor.run_doctor(lines.append), lines


def test_no_opengl_ends_with_the_fix(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(doctor, "GL_CHILD", "from ctrlformer.errors import RenderError\nraise RenderError('none')")
    code, lines = examine()
    assert code == 2
    assert lines[-1] == f"fix: {doctor.FIX}"
    assert any(line.split() == ["GL", "egl", "not", "available"] for line in lines)


def test_a_wrong_choice_in_the_environment_is_the_thing_to_unset(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(doctor, "GL_CHILD", "import os\nassert 'MUJOCO_GL' not in os.environ\n" + DRAWS)
    machine.setenv("MUJOCO_GL", "egl")
    code, lines = examine()
    assert code == 2
    assert lines[-1] == "fix: unset MUJOCO_GL PYOPENGL_PLATFORM"


def test_a_broken_first_choice_is_replaced_by_one_that_works(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(doctor, "GL_CHILD", "import sys\nassert sys.argv[1:] == ['osmesa-wheel']\n" + DRAWS)
    code, lines = examine()
    assert code == 2
    assert lines[-1] == "fix: export MUJOCO_GL=osmesa"


@pytest.mark.parametrize(("dtype", "verdict"), [("bfloat16", 0), ("float32", 2)])
def test_only_fp32_must_work(machine: pytest.MonkeyPatch, dtype: str, verdict: int) -> None:
    dies = f"import os, signal, sys\nif sys.argv[1] == {dtype!r}:\n    os.kill(os.getpid(), signal.SIGILL)\n"
    machine.setattr(doctor, "PRECISION_CHILD", dies + COMPUTES)
    code, lines = examine()
    assert code == verdict
    assert sum("died with SIGILL" in line for line in lines) == 1


def test_a_missing_package_is_the_first_fix(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(doctor, "PACKAGES", (*doctor.PACKAGES, "no-such-package"))
    code, lines = examine()
    assert code == 2
    assert lines[-1] == "fix: pip install no-such-package"


def test_a_child_s_last_word_is_kept_and_a_silent_one_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.ask_child("raise ValueError('broken driver')").failure == "ValueError: broken driver"
    monkeypatch.setattr(doctor, "CHILD_SECONDS", 0.5)
    assert "no answer" in doctor.ask_child("import time; time.sleep(30)").failure
