"""Many tasks in one agent: what they cost in parameters, time and memory, with joint and with causal attention."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from benchmarks.experience import ACTIONS
from benchmarks.table import Aim, Effort, Sample, SpeedComparison, in_turn
from benchmarks.update_rows import batch_for, one_thread, with_agent
from ctrlformer.agents import SacAgent
from ctrlformer.config import Config, TransferConfig
from ctrlformer.replay import Batch
from ctrlformer.storage.files import JSON

AttentionLayer = Literal["joint", "causal"]
COUNTS = (1, 4, 16, 64)
WITHIN = Aim(round(1 / 1.1, 3))  # at most 1.1 times the time of a single task
LITTLE = 4  # transitions with which a task is learnt a little
MEGABYTE = 1e6


class Load(NamedTuple):
    """What an agent with so many tasks costs."""

    attention: AttentionLayer
    tasks: int
    parameters: int
    first: Sample  # seconds of an update of its first task
    newest: Sample  # and of its newest
    agent_bytes: int  # weights, targets and the optimisers' moments
    backward_bytes: int  # what the newest task's update keeps for its backward passes

    def to_json(self) -> dict[str, JSON]:
        return {
            "attention": self.attention,
            "tasks": self.tasks,
            "parameters": self.parameters,
            "first_task_seconds": self.first.median,
            "newest_task_seconds": self.newest.median,
            "agent_megabytes": round(self.agent_bytes / MEGABYTE, 1),
            "backward_megabytes": round(self.backward_bytes / MEGABYTE, 1),
        }


def first_task(effort: Effort) -> SpeedComparison:
    note = "the first task's update with causal attention: later tasks cost it nothing, whatever their number"
    return _compared(effort, lambda load: load.first, note)


def newest_task(effort: Effort) -> SpeedComparison:
    note = "the newest task's update with causal attention: its token reads those of all earlier tasks"
    return _compared(effort, lambda load: load.newest, note)


def _compared(effort: Effort, update: Callable[[Load], Sample], note: str) -> SpeedComparison:
    """64 tasks beside one, causal; everything that was measured goes into the file."""
    loads = measured(effort)
    one, *_, many = (load for load in loads if load.attention == "causal")
    joint = [f"{update(load).median / update(loads[0]).median:.2f}" for load in loads if load.attention == "joint"]
    note += (
        f"; compact_vit, {many.tasks} tasks in the agent, the reference is one. Joint attention with"
        f" {', '.join(map(str, COUNTS))} tasks takes {', '.join(joint)} times as long as with one;"
        f" {many.tasks} causal tasks have {many.parameters:,} parameters and {many.agent_bytes / MEGABYTE:,.0f} MB"
    )
    return SpeedComparison(update(many), update(one), "s", note, figures=[load.to_json() for load in loads])


@functools.cache
def measured(effort: Effort, preset: str = "compact_vit", counts: Sequence[int] = COUNTS) -> tuple[Load, ...]:
    """Both rows are of one measurement. In one thread, the only one whose backward memory can be counted."""
    with one_thread():
        return tuple(
            load
            for attention in get_args(AttentionLayer)
            for load in _loads(effort, _with_attention(with_agent(preset), attention), attention, counts)
        )


def _loads(effort: Effort, config: Config, attention: AttentionLayer, counts: Sequence[int]) -> list[Load]:
    """Agents with few and many tasks, timed in turn."""
    agents = [agent_with(count, config) for count in counts]
    batch = batch_for(agents[0])
    times = in_turn(
        [_updates(agent, task, batch) for agent in agents for task in (agent.tasks[0], agent.tasks[-1])], effort.repeats
    )
    return [
        Load(
            attention,
            len(agent.tasks),
            _parameters(agent),
            first.scaled(1 / config.agent.actor_every),
            newest.scaled(1 / config.agent.actor_every),
            _size(_tensors(agent)),
            kept_for_backward(agent, agent.tasks[-1], batch),
        )
        for agent, first, newest in zip(agents, times[::2], times[1::2], strict=True)
    ]


def _with_attention(config: Config, attention: AttentionLayer) -> Config:
    return dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, task_attention=attention))


def agent_with(count: int, config: Config) -> SacAgent:
    """An agent that has learnt `count` tasks, a little of each: its optimisers know them all."""
    agent = SacAgent(config)
    drawn = [part for part in batch_for(agent) if part is not None]
    little = Batch(*(part[:, :LITTLE] if part.ndim > 2 else part[:LITTLE] for part in drawn))
    for number in range(count):
        agent.add_task(f"task {number}", ACTIONS, TransferConfig() if number else None)
        _updates(agent, agent.tasks[-1], little)()
    return agent


def _updates(agent: SacAgent, task: str, batch: Batch) -> Callable[[], object]:
    """As many updates as make one of the actor's."""
    return lambda: [agent.update(task, batch) for _ in range(agent.settings.actor_every)]


def _parameters(agent: SacAgent) -> int:
    """What learns: without targets, which are copies."""
    modules = (agent.encoder, agent.contrast, agent.heads)
    return sum(parameter.numel() for module in modules for parameter in module.parameters() if parameter.requires_grad)


def _tensors(agent: SacAgent) -> list[Tensor]:
    return [tensor for part in agent.tensors().values() for tensor in part.values()]


def kept_for_backward(agent: SacAgent, task: str, batch: Batch) -> int:
    """Bytes that autograd keeps between forward and backward passes of an update, beside the weights: each piece of
    memory once."""
    tensors = _tensors(agent)  # held until the end: some are made for saving, and their addresses would be used again
    weights = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    kept: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)  # and so alive: its place is not used again
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        agent.update(task, batch)
    return _size(tensor for place, tensor in kept.items() if place not in weights)


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)
