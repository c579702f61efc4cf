"""The choice of a render backend; each case in a child, because a process chooses once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def choose(setup: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `use_backend` in a fresh process without a screen."""
    unset = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY")
    environment = {k: v for k, v in os.environ.items() if k not in unset} | variables
    code = f"import os; from ctrlformer.envs import gl, pixel_fingerprint\n{setup}\nprint(gl.use_backend())"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


ONLY = "gl.BACKENDS = {{name: (lambda name=name: name == {!r}) for name in gl.BACKENDS}}"


def test_a_machine_without_a_screen_draws() -> None:
    child = choose("pixel_fingerprint()")
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() in ("egl", "osmesa", "osmesa-wheel")


@pytest.mark.parametrize(("backend", "library"), [("egl", "egl"), ("osmesa", "osmesa"), ("osmesa-wheel", "osmesa")])
def test_the_first_that_works_is_taken_and_told_to_mujoco(backend: str, library: str) -> None:
    child = choose(ONLY.format(backend) + "\ngl.use_backend(); print(os.environ['MUJOCO_GL'])")
    assert child.stdout.split() == [library, backend], child.stderr


def test_egl_comes_before_osmesa() -> None:
    child = choose("gl.BACKENDS = {name: (lambda: True) for name in gl.BACKENDS}")
    assert child.stdout.strip() == "egl", child.stderr


def test_no_backend_at_all_names_the_fix_in_one_line() -> None:
    child = choose(ONLY.format("none"))
    assert child.returncode != 0
    last = child.stderr.strip().splitlines()[-1]
    assert "RenderError: no OpenGL library works here" in last
    assert "libosmesa6" in last
    assert "lavavu-osmesa" in last


def test_the_user_s_choice_is_kept_or_refused_by_name() -> None:
    assert choose(MUJOCO_GL="glfw").stdout.strip() == "glfw"
    child = choose(ONLY.format("egl"), MUJOCO_GL="osmesa")
    assert "MUJOCO_GL=osmesa does not work here" in child.stderr


def test_toy_tasks_need_no_opengl() -> None:
    child = choose(ONLY.format("none") + "\npixel_fingerprint(task='toy/reach')\nprint('drawn')")
    assert child.stdout.strip() == "drawn"
