"""How long one update takes, beside the paper's listings, stable-baselines3 and the machine's peak."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.experience import ACTIONS, filled_replay
from benchmarks.listings import ListingsAgent, StackedBatch
from benchmarks.peers import sb3_update
from benchmarks.table import Effort, SpeedComparison, alternate
from ctrlformer.agents import SacAgent
from ctrlformer.config import AgentConfig, Config
from ctrlformer.config.presets import preset
from ctrlformer.replay import Batch

TASK = "cartpole_swingup"  # a name only: the batches are made up
REPLAY_STEPS = 600
GEMM_SIZE = 2048
GIGA = 1e9


def paper(effort: Effort) -> SpeedComparison:
    return _beside_listings(with_agent("paper", batch_size=effort.paper_batch), effort)


def compact_vit(effort: Effort) -> SpeedComparison:
    return _beside_listings(with_agent("compact_vit"), effort)


def compact_beside_vit(effort: Effort) -> SpeedComparison:
    """Each with its own pictures, batch and precision: what an update costs, whatever it is made of."""
    (new, new_batch), (old, old_batch) = (agent_and_batch(preset(name)) for name in ("compact", "compact_vit"))
    ours, reference = alternate(
        _cycle(new.settings, lambda: new.update(TASK, new_batch)),
        _cycle(old.settings, lambda: old.update(TASK, old_batch)),
        2 * effort.repeats,
    )
    shares = 1 / new.settings.actor_every, 1 / old.settings.actor_every
    note = (
        f"{new.settings.batch_size} transitions of {new.config.env.image_size} pixels; the reference is compact_vit,"
        f" {old.settings.batch_size} of {old.config.env.image_size}"
    )
    return SpeedComparison(ours.scaled(shares[0]), reference.scaled(shares[1]), "s", note)


def drq(effort: Effort) -> SpeedComparison:
    return _beside_listings(with_agent("drq", batch_size=effort.cnn_batch), effort)


def drq_beside_sb3(effort: Effort) -> SpeedComparison:
    # Actor and targets move at every update, as theirs do.
    config = with_agent(
        "drq", batch_size=effort.cnn_batch, q_regularisation=False, actor_every=1, target_every=1, learning_rate=1e-4
    )
    agent, batch = agent_and_batch(config)
    ours, reference = alternate(
        lambda: agent.update(TASK, batch), sb3_update(config, StackedBatch.of(batch)), 2 * effort.repeats
    )
    note = (
        f"SAC.train without its sampling, encoder shared by actor and critics, batch {config.agent.batch_size} of 512;"
        " ours without Q-regularisation, actor and targets at every update, as theirs"
    )
    return SpeedComparison(ours, reference, "s", note)


def peak_share(effort: Effort) -> SpeedComparison:
    config = with_agent("paper", batch_size=effort.paper_batch)
    agent, batch = agent_and_batch(config)
    cycle = _cycle(config.agent, lambda: agent.update(TASK, batch))
    with one_thread():
        counted, _ = agent_and_batch(config)
    flops = count_flops(_cycle(config.agent, lambda: counted.update(TASK, batch)))
    left, right = torch.randn(2, GEMM_SIZE, GEMM_SIZE)
    products = 4
    update, product = alternate(cycle, lambda: [left @ right for _ in range(products)], effort.repeats)
    reached = update.each(lambda seconds: flops / seconds / GIGA)
    peak = 2 * GEMM_SIZE**3 * products / product.low / GIGA
    note = (
        f"{flops / GIGA:.0f} GFLOP in {config.agent.actor_every} updates, batch {config.agent.batch_size} of 512; the"
        f" peak is the best product of two {GEMM_SIZE} x {GEMM_SIZE} matrices"
    )
    return SpeedComparison(
        reached, product._replace(median=peak, low=peak, high=peak), "GFLOP/s", note, more_is_better=True
    )


def with_agent(name: str, **changes: Any) -> Config:
    """A preset with other settings of its agent; in fp32, as the references compute."""
    config = preset(name)
    return dataclasses.replace(
        config,
        agent=dataclasses.replace(config.agent, **changes),
        training=dataclasses.replace(config.training, precision="fp32"),
    )


def agent_and_batch(config: Config) -> tuple[SacAgent, Batch]:
    """An agent with one task, and a batch as its trainer would draw it."""
    agent = SacAgent(config)
    agent.add_task(TASK, ACTIONS)
    return agent, batch_for(agent)


def batch_for(agent: SacAgent) -> Batch:
    replay = filled_replay(REPLAY_STEPS, agent.config.env.image_size)
    batch: Batch = agent.draw(replay, np.random.default_rng(0))
    return batch


def _beside_listings(config: Config, effort: Effort) -> SpeedComparison:
    agent, batch = agent_and_batch(config)
    reference, stacked = ListingsAgent(agent, ACTIONS), StackedBatch.of(batch)
    ours, listings = alternate(
        _cycle(config.agent, lambda: agent.update(TASK, batch)),
        _cycle(config.agent, lambda: reference.update(stacked)),
        effort.repeats,
    )
    size, whole = config.agent.batch_size, preset(config.preset).agent.batch_size
    scaled = f"batch {size} of the preset's {whole}" if size < whole else f"batch {size}"
    note = f"the paper's Listings 2 and 3 done literally, same losses and weights; {scaled}"
    share = 1 / config.agent.actor_every
    return SpeedComparison(ours.scaled(share), listings.scaled(share), "s", note)


def _cycle(settings: AgentConfig, update: Callable[[], object]) -> Callable[[], object]:
    """As many updates as make one of the actor's: every update costs the same on average."""
    return lambda: [update() for _ in range(settings.actor_every)]


@contextmanager
def one_thread() -> Iterator[None]:
    """An agent made in here keeps to the caller's thread, the only one whose operations torch can count."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def count_flops(run: Callable[[], object]) -> int:
    """Floating-point operations in matrix products, convolutions and attention that `run` really does."""
    aten = torch.ops.aten
    # What torch's counter does not know: attention's kernels for CPUs, and products added in place.
    more: dict[Any, Callable[..., int]] = {
        aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, *_, **__: _attention_flops(q, k, products=2),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            # The weights are computed anew, then the gradients of weights, values, queries and keys.
            lambda gradient, q, k, *_, **__: _attention_flops(q, k, products=5)
        ),
        aten.addmm_: lambda total, left, right, **_: 2 * left[0] * left[1] * right[1],
    }
    with FlopCounterMode(display=False, custom_mapping=more) as counter:
        run()
    return int(counter.get_total_flops())


def _attention_flops(query: Sequence[int], key: Sequence[int], products: int) -> int:
    batch, heads, queries, width = query  # shapes
    return products * 2 * batch * heads * queries * key[2] * width
