"""How many cases each fault gets, and where the counts go: see `--faults` in tests/conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tally import HowMany, Tally


@pytest.fixture
def how_many(request: pytest.FixtureRequest) -> HowMany:
    """`how_many(quick, full)` cases: a few in `make test`, all of them in `make test-faults`."""
    is_full = request.config.getoption("--faults-out") is not None
    return lambda quick, full: full if is_full else quick


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """The counts of a test marked `fault(row)`; it fails at its end if any case failed."""
    marker = request.node.get_closest_marker("fault")
    counts = Tally(marker.args[0], request.node.name)
    yield counts
    if out := request.config.getoption("--faults-out"):
        counts.write(out)
    assert not counts.failures, "\n".join(counts.failures[:20])
