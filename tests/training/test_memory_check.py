"""What a training will need of memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ctrlformer.config import Config
from ctrlformer.config.presets import make_config
from ctrlformer.errors import ConfigError
from ctrlformer.replay import Replay, ring_bytes
from ctrlformer.training import memory_check
from ctrlformer.training.memory_check import batch_bytes, check_memory, remembered_bytes, replay_bytes

CPU = torch.device("cpu")


def config(preset: str = "compact_vit", *tasks: str, **changes: Any) -> Config:
    settings = {name.replace("__", "."): value for name, value in changes.items()}
    return make_config(tasks or ("cartpole_swingup",), preset, None, 1, settings)


def check(wanted: Config) -> None:
    check_memory(wanted, wanted.stages, CPU)


def has(free: int, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory_check, "free_memory", lambda: free)


def test_a_replay_that_a_stage_does_not_fill_needs_less() -> None:
    long, short = config(training__frames=10**6), config(training__frames=8_000)  # 8 frames a step
    assert replay_bytes(long, long.stages[0], "cartpole_swingup") == ring_bytes(100_000, 1)
    assert replay_bytes(short, short.stages[0], "cartpole_swingup") == ring_bytes(1_000, 1)


def test_dreamer_stores_smaller_pictures_and_a_frozen_network_features() -> None:
    small, features = config("dreamer"), config("resnet50_sac")
    assert replay_bytes(small, small.stages[0], "cartpole_swingup") == ring_bytes(62_500, 1, 64)
    assert replay_bytes(features, features.stages[0], "cartpole_swingup") == ring_bytes(62_500, 1, features=2048)


@pytest.mark.parametrize("preset", ["compact", "paper", "tiny"])
def test_batches_are_as_large_as_those_drawn(preset: str) -> None:
    import numpy as np

    from ctrlformer.agents import make_agent

    wanted = config(preset, agent__batch_size=3)
    picture = np.zeros((wanted.env.image_size, wanted.env.image_size, 3), np.uint8)
    replay = Replay(None, 10, 1, wanted.env.image_size)
    replay.begin(picture)
    replay.add(np.zeros(1, np.float32), 0.0, False, picture)
    batch = make_agent(wanted).draw(replay, np.random.default_rng(0))
    updates = 2 if preset == "compact" else 1  # a step: one every 4 frames, and 8 frames a step
    assert batch_bytes(wanted) == 2 * updates * (batch.observation.nbytes + batch.next_observation.nbytes)


def test_what_fits_is_let_in_and_what_does_not_is_refused_with_size_and_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = config(training__frames=10**6)
    needed = ring_bytes(100_000, 1) + batch_bytes(wanted)
    has(needed, monkeypatch)
    check(wanted)
    has(needed - 10**7, monkeypatch)
    with pytest.raises(
        ConfigError, match=r"100,000 steps .* need 2.45 GB.* 2.44 GB are free.* --training.replay-capacity"
    ):
        check(wanted)
    check(config(training__frames=10_000))
    with pytest.raises(ConfigError, match=r"batches of 1,000,000 need 254.31 GB.*--agent.batch-size"):
        check(config(agent__batch_size=1_000_000))


def test_tasks_learnt_together_need_their_replays_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one_after_the_other = config("compact_vit", "cartpole_swingup", "cartpole_balance")
    has(ring_bytes(12_500, 1) + batch_bytes(one_after_the_other), monkeypatch)
    check(one_after_the_other)
    with pytest.raises(ConfigError, match=r"--training.replay-capacity"):
        check(replace(one_after_the_other, together=True))


def test_what_the_system_never_gives_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_check, "free_memory", lambda: None)
    with pytest.raises(ConfigError, match=r"does not give.*--training.replay-capacity"):
        check(config(training__replay_capacity=10**12))


def test_what_an_update_remembers_of_a_batch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = config("paper", training__frames=80)
    remembered, others = remembered_bytes(wanted, CPU), ring_bytes(10, 1) + batch_bytes(wanted)
    assert remembered > 10 * others
    has(others + remembered, monkeypatch)
    check_memory(wanted, wanted.stages, CPU, remembered)
    has(others + remembered - 1, monkeypatch)
    with pytest.raises(ConfigError, match=r"batches of 512 need .*lower --agent.batch-size"):
        check_memory(wanted, wanted.stages, CPU, remembered)


def test_twice_the_observations_are_remembered_in_twice_the_memory() -> None:
    def needed(**changes: Any) -> int:
        return remembered_bytes(config(training__precision="fp32", **changes), CPU)

    assert needed(agent__batch_size=512) == 2 * needed(agent__batch_size=256)
    assert needed(agent__q_regularisation=True) == 2 * needed(agent__q_regularisation=False)
    assert needed(encoder__blocks_per_stage=2) > 1.2 * needed(encoder__blocks_per_stage=1)
    assert needed() > 256 * 84 * 84 * 9, "at least the pictures themselves"


def test_nothing_is_measured_for_a_frozen_network_dreamer_or_a_gpu() -> None:
    for wanted in (config("resnet50_sac"), config("dreamer_compact")):
        assert remembered_bytes(wanted, CPU) == 0
    assert remembered_bytes(config(), torch.device("cuda")) == 0


def test_on_a_gpu_its_own_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is asked about a GPU is stood in for: how much of its memory is free."""
    wanted, gpu = config(training__frames=10**6), torch.device("cuda")
    replays, batches = ring_bytes(100_000, 1), batch_bytes(wanted)
    free = {"host": 0, "gpu": 0}
    monkeypatch.setattr(memory_check, "free_memory", lambda: free["host"])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free["gpu"], 0))

    free.update(host=0, gpu=2 * replays)  # the frames are kept there if they fit well
    check_memory(wanted, wanted.stages, gpu)
    free.update(host=replays, gpu=batches)  # and here if not
    check_memory(wanted, wanted.stages, gpu)
    free.update(host=replays - 10**7)
    with pytest.raises(ConfigError, match=r"--training.replay-capacity"):
        check_memory(wanted, wanted.stages, gpu)
    free.update(host=replays, gpu=batches - 1)
    with pytest.raises(ConfigError, match=r"--agent.batch-size"):
        check_memory(wanted, wanted.stages, gpu)
    there = config(training__frames=10**6, training__replay_on="device")
    free.update(host=2 * replays, gpu=replays - 10**7)
    with pytest.raises(ConfigError, match=r"--training.replay-capacity"):
        check_memory(there, there.stages, gpu)
