"""The doctor reports, survives what it examines, and ends with a verdict."""

from __future__ import annotations

import pytest

from ctrlformer import doctor


def test_a_machine_that_can_run_the_tests_is_ready() -> None:
    lines: list[str] = []
    assert doctor.run_doctor(lines.append) == 0
    assert lines[-1] == "ready"
    named = {line[:18].strip(): line[18:].strip() for line in lines}
    for name in ("python", "torch", "cores", "memory", "disk", "GL egl", "GL osmesa", "GL osmesa-wheel", "bf16"):
        assert named[name]
    assert "GFLOPS" in named["fp32"]
    assert len(named["pixel fingerprint"]) == 16


def test_no_opengl_ends_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "GL_CHILD", "from ctrlformer.errors import RenderError\nraise RenderError('none')")
    lines: list[str] = []
    assert doctor.run_doctor(lines.append) == 2
    assert lines[-1] == f"fix: {doctor.FIX}"
    assert any(line.split() == ["GL", "egl", "not", "available"] for line in lines)


def test_a_wrong_choice_in_the_environment_is_the_thing_to_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    working = "import os, sys\nassert 'MUJOCO_GL' not in os.environ, 'broken'\n"
    answer = """print('{"backend": "egl", "fingerprint": "0", "milliseconds": 1.0}')"""
    monkeypatch.setattr(doctor, "GL_CHILD", working + answer)
    monkeypatch.setattr(doctor, "PRECISION_CHILD", """print('{"gflops": 1.0, "gpu": null}')""")
    monkeypatch.setenv("MUJOCO_GL", "egl")
    lines: list[str] = []
    assert doctor.run_doctor(lines.append) == 2
    assert lines[-1] == "fix: unset MUJOCO_GL PYOPENGL_PLATFORM"


def test_a_child_that_dies_is_reported_by_its_signal() -> None:
    died = doctor.ask_child("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert died.failure == "died with SIGILL"


def test_a_processor_that_refuses_bf16_is_still_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = (
        "import os, signal, sys\nif sys.argv[1] == 'bfloat16':\n    os.kill(os.getpid(), signal.SIGILL)\n"
        """print('{"gflops": 9.0, "gpu": null}')"""
    )
    monkeypatch.setattr(doctor, "PRECISION_CHILD", refuses)
    lines: list[str] = []
    assert doctor.run_doctor(lines.append) == 0
    assert any("died with SIGILL" in line for line in lines)


def test_a_missing_package_is_the_first_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", (*doctor.PACKAGES, "no-such-package"))
    lines: list[str] = []
    assert doctor.run_doctor(lines.append) == 2
    assert lines[-1] == "fix: pip install no-such-package"


def test_a_child_s_last_word_is_kept_and_a_silent_one_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.ask_child("raise ValueError('broken driver')").failure == "ValueError: broken driver"
    monkeypatch.setattr(doctor, "CHILD_SECONDS", 0.5)
    assert "no answer" in doctor.ask_child("import time; time.sleep(30)").failure
