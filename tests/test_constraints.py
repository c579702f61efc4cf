"""constraints.txt pins everything that is installed with the package."""

from __future__ import annotations

import importlib.metadata
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = project["dependencies"] if group == "runtime" else project["optional-dependencies"][group]
    assert needed(requirements) - set(pins()) == set()


def test_versions_are_exact_and_sorted_lines_name_each_package_once() -> None:
    text = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(line.startswith("#") or line.count("==") == 1 for line in text)
    assert len(pins()) == sum(not line.startswith("#") for line in text)
