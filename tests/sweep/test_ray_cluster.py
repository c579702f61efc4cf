"""A sweep on real Ray nodes of one machine: a node that dies, runs that are stopped and gone on with."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweeps import evals, learning, said_at_the_end, sweeping, until, words

from ctrlformer.cli.main import main
from ctrlformer.errors import ConfigError, RunError
from ctrlformer.paper.plan import RUNS
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.sweep.ray_cluster import MARK, RayCluster, train

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray then stays on the loopback interface, on Linux too
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (Ray spells it so; its own 15 is next to nothing on a busy machine)
NODE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 80_000_000}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("undisturbed")
    assert main(words(out, "--jobs", "0")) == 0
    return evals(out)


@pytest.fixture
def cluster() -> Iterator[Any]:
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


@pytest.mark.slow
def test_a_node_that_dies_costs_nothing_but_time(cluster: Any, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    node = cluster.add_node(**NODE)
    with sweeping(tmp_path, "--ray", cluster.address) as process:
        until(lambda: len(learning(tmp_path)) == 2, process)  # one on each node
        cluster.remove_node(node, allow_graceful=False)
        said = said_at_the_end(process, 0)
    assert "its node or worker is gone" in said
    assert sum("] resumed: " in line for line in said.splitlines()) == 1
    assert evals(tmp_path) == undisturbed
    assert sorted(line.split(": ")[1] for line in said.splitlines() if "] finished: " in line) == sorted(undisturbed)


@pytest.mark.slow
def test_a_grid_on_a_local_cluster_is_stopped_and_gone_on_with(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    for number in (signal.SIGINT, signal.SIGTERM):
        begun = time.time()
        with sweeping(tmp_path, "--ray", "local") as process:
            until(lambda since=begun: learning(tmp_path, since), process)  # type: ignore[misc]
            process.send_signal(number)
            assert "the same command resumes" in said_at_the_end(process, 128 + number)
        for folder in (tmp_path / RUNS).iterdir():
            with RunFolder.open(folder).lock(patience=0):  # nobody trains it any more
                pass
    assert evals(tmp_path) != undisturbed
    with sweeping(tmp_path, "--ray", "local") as process:
        assert " begun" in said_at_the_end(process, 0)
    assert evals(tmp_path) == undisturbed


def test_without_ray_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'ctrlformer\[ray\]'"):
        RayCluster("local", tmp_path, 1.0, 0.0)


def test_a_node_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    for folder in (tmp_path / "nowhere", tmp_path):
        (tmp_path / MARK).write_text("of another machine")
        with pytest.raises(RunError, match="put --out on storage that all nodes share"):
            train("{}", str(folder), "ours", 1)
