"""How many cases each fault gets, where the counts go (see `--faults-out` in tests/conftest.py), and the run that
every broken one is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from broken_runs import start, without_waste
from commands import finish, make_run
from small_runs import outcome
from tally import HowMany, Tally

from ctrlformer.storage.run_folder import RunFolder


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


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A small run that nothing broke."""
    with pytest.MonkeyPatch.context() as patch:
        without_waste(patch)
        return start(tmp_path_factory.mktemp("runs") / "whole")


@pytest.fixture(scope="session")
def expected(whole: RunFolder) -> dict[str, Any]:
    """What every broken run must come to in the end, to the last bit."""
    return outcome(whole)


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run to be handed out in bad copies, stopped in its second stage."""
    return make_run(tmp_path_factory.mktemp("sound") / "stopped")


@pytest.fixture(scope="session")
def finished(stopped: RunFolder) -> RunFolder:
    """The same, finished."""
    return finish(stopped, stopped.path.parent / "finished")


@pytest.fixture
def quick_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pictures and pages in the trainings of this test."""
    without_waste(monkeypatch)
