"""constraints.txt pins everything that is installed with the package, within the ranges that pyproject.toml allows."""

from __future__ import annotations

import importlib.metadata
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GROUPS = {"runtime": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
UNPINNED = {"wandb"}  # an extra that nothing here is tested with


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def needed(requirements: Iterable[str], extras: frozenset[str] = frozenset()) -> set[str]:
    """Every installed package that these need, directly or through others."""
    found: set[str] = set()
    left = [(Requirement(text), extras) for text in requirements]
    seen = set()
    while left:
        one, wanted = left.pop()
        if one.marker and not any(one.marker.evaluate({"extra": extra}) for extra in wanted or {""}):
            continue
        name = canonicalize_name(one.name)
        if (name, frozenset(one.extras)) in seen:
            continue
        seen.add((name, frozenset(one.extras)))
        found.add(name)
        requires = importlib.metadata.requires(name) or []
        left += [(Requirement(text), frozenset(one.extras)) for text in requires]
    return found


@pytest.mark.parametrize("group", ["runtime", "tensorboard", "dev"])
def test_everything_needed_is_pinned(group: str) -> None:
    assert needed(GROUPS[group]) - set(pins()) == set()


@pytest.mark.parametrize("group", GROUPS)
def test_every_pin_lies_within_the_range_of_pyproject(group: str) -> None:
    required = [one for one in map(Requirement, GROUPS[group]) if canonicalize_name(one.name) not in UNPINNED]
    outside = [str(one) for one in required if not one.specifier.contains(pins()[canonicalize_name(one.name)])]
    assert outside == []


def test_exact_versions_stand_in_constraints_only() -> None:
    """A package that pins its dependencies cannot be installed beside another that needs the next version."""
    exact = [text for group in GROUPS.values() for text in group if "==" in text]
    assert exact == []


def test_mujoco_has_an_upper_bound() -> None:
    """dm-control asks for mujoco without one, and 1.0.50 does not work with 4.0.0."""
    (mujoco,) = (one for one in map(Requirement, GROUPS["runtime"]) if one.name == "mujoco")
    assert not mujoco.specifier.contains("4.0.0")


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_only_versions_of_python_are_named_that_every_dependency_installs_on(version: str) -> None:
    """labmaze, which dm-control needs, has wheels up to 3.12."""
    installs = version in ("3.11", "3.12")
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{version}.1") == installs
    assert (f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]) == installs


def test_versions_are_exact_and_sorted_lines_name_each_package_once() -> None:
    text = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(line.startswith("#") or line.count("==") == 1 for line in text)
    assert len(pins()) == sum(not line.startswith("#") for line in text)
