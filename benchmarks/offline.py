"""Offline bench: what critics and features that are trained on recorded episodes tell of episodes they have not seen.

A state oracle plays a task at three competences: random actions, half trained, trained; `record` stores its episodes
with pixels and states. `score` trains an agent's encoder and critics on some of them by the agent's own update, with
Monte-Carlo returns in place of TD targets, and prints on held-out episodes the share of the returns' variance that the
critics explain, and of the state's that a linear map of the features explains. A setting takes a minute or two. It
discards settings; it crowns none: what is learned from one's own experience is another matter.

    python -m benchmarks.offline record reacher_easy --frames 40000 --seed 1 --file reacher.npz
    python -m benchmarks.offline score reacher.npz --preset conv --set agent.shift=6 --seed 1 2 --out results.jsonl
"""

from __future__ import annotations

import argparse
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.state_oracle import StateAgent, StateEnv, collect, oracle_config, setting, show, updates_due
from ctrlformer.agents import SacAgent
from ctrlformer.config import Config, differences
from ctrlformer.config.presets import make_config, overridden
from ctrlformer.envs.tasks import action_repeat
from ctrlformer.errors import ConfigError, CtrlFormerError
from ctrlformer.replay import Batch, Replay
from ctrlformer.storage.files import replacing
from ctrlformer.system.memory import keep_freed_memory
from ctrlformer.training.collect import EVALUATE, episode_seed

Floats = NDArray[Any]

COMPETENCES = ("random", "half", "trained")
HELD_OUT = 0.4  # of the episodes of each competence
EVERY = 12  # steps between two scored ones: neighbours tell the same
RIDGE = 0.1
RETURNS_ONLY = {"agent.past_actions": 0, "agent.head_updates": 0}  # both would read the return that is in an action
TAIL = 20  # last steps whose mean reward is taken to go on after an episode's end


@dataclass(frozen=True)
class Episodes:
    """Recorded episodes of one task, all of T steps."""

    frames: NDArray[np.uint8]  # (N, T + 1, H, W, 3)
    actions: Floats  # (N, T, A)
    rewards: Floats  # (N, T)
    states: Floats  # (N, T + 1, S)
    competence: NDArray[np.int64]  # (N,), an index into COMPETENCES
    task: str

    @classmethod
    def load(cls, file: Path) -> Episodes:
        try:
            with np.load(file, allow_pickle=False) as saved:
                arrays = {name: saved[name] for name in cls.__dataclass_fields__}
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{file} has no recorded episodes ({error}): `record` makes such a file") from None
        return cls(**{**arrays, "task": str(arrays["task"])})

    def split(self, most: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Numbers of the episodes to train on, at most so many of each competence, and of those held out."""
        train, test = [], []
        for number in range(len(COMPETENCES)):
            of_kind = np.flatnonzero(self.competence == number)
            held = int(HELD_OUT * len(of_kind))
            test.append(of_kind[len(of_kind) - held :])
            train.append(of_kind[: len(of_kind) - held][:most])
        return np.concatenate(train), np.concatenate(test)

    def stacks(self, places: Sequence[tuple[int, int]], count: int) -> Tensor:
        """The newest `count` frames at (episode, step), as the encoder reads them: (B, H, W, 3 count)."""
        stacks = [np.concatenate([self.frames[e, t - k] for k in reversed(range(count))], -1) for e, t in places]
        return torch.from_numpy(np.stack(stacks))


def record(task: str, frames: int, seed: int, episodes: int, size: int, file: Path) -> None:
    """Train a state oracle for `frames` and store episodes of each competence."""
    config, _ = oracle_config(task, seed, "compact", {"training.frames": frames}, identity=False)
    with closing(StateEnv(task)) as env:
        agent = StateAgent(config, env.size, False, seed)
        agent.add_task(task, env.action_dim)
        replay = Replay(None, config.training.replay_capacity, env.action_dim, 1, 1, features=env.size)
        rng = np.random.default_rng((seed, EVALUATE))
        played: list[dict[str, Floats]] = []

        def play(kind: int) -> None:
            for number in range(episodes):
                policy = agent.policy(task, explore=True) if kind else _random_policy(env.action_dim, rng)
                played.append(_episode(env, policy, episode_seed(seed, EVALUATE, kind, number), size))
            earned = np.mean([episode["rewards"].sum() for episode in played[-episodes:]])
            print(f"{task}, {COMPETENCES[kind]}: {episodes} episodes, mean return {earned:.0f}", flush=True)

        play(0)
        done = steps = 0
        for count, _, ended in collect(agent, env, replay, rng, config.training.seed_steps):
            done, steps = done + count, steps + 1
            for _ in range(updates_due(config, steps)):
                agent.update(task, agent.draw(replay, rng), done / frames)
            if ended and done >= frames:
                break
            if ended and done >= frames / 2 and len(played) == episodes:
                play(1)
        play(2)
    arrays: dict[str, Any] = {name: np.stack([episode[name] for episode in played]) for name in played[0]}
    competence = np.repeat(np.arange(len(COMPETENCES)), episodes)
    with replacing(file) as temporary, temporary.open("wb") as out:
        np.savez(out, task=np.array(task), competence=competence, **arrays)


def _random_policy(action_dim: int, rng: np.random.Generator) -> Callable[[Floats], Floats]:
    return lambda _: rng.uniform(-1, 1, action_dim).astype(np.float32)


def _episode(env: StateEnv, policy: Callable[[Floats], Floats], seed: int, size: int) -> dict[str, Floats]:
    """One episode's pictures, actions, rewards and states."""
    state, _ = env.reset(seed=seed)
    frames, states, actions, rewards, ended = [env.picture(size)], [state], [], [], False
    while not ended:
        actions.append(policy(state))
        state, reward, terminated, truncated, _ = env.step(actions[-1])
        ended = terminated or truncated
        rewards.append(reward)
        frames.append(env.picture(size))
        states.append(state)
    return {
        "frames": np.stack(frames),
        "actions": np.stack(actions),
        "rewards": np.array(rewards, np.float32),
        "states": np.stack(states),
    }


class _ReturnsAgent(SacAgent):
    """Critics learn the Monte-Carlo returns that come as the last number of a replay's action."""

    def update(self, task: str, batch: Batch, *args: Any, **more: Any) -> dict[str, Tensor]:
        self._returns = batch.action[:, -1].contiguous()
        return super().update(task, batch._replace(action=batch.action[:, :-1].contiguous()), *args, **more)

    def _td_target(self, *_: Any) -> Tensor:
        return self._returns


def score(data: Episodes, config: Config, episodes: int | None, updates: Sequence[int]) -> list[dict[str, Any]]:
    """Train on at most so many episodes of each competence; a row of figures after each of these numbers of updates."""
    config = overridden(config, RETURNS_ONLY)
    train, test = data.split(episodes)
    returns = _discounted(data.rewards / action_repeat(data.task), config.agent.discount)
    torch.manual_seed(config.seed)
    agent = _ReturnsAgent(config, seed=config.seed)
    agent.add_task(data.task, data.actions.shape[-1])
    replay = _filled_replay(data, returns, train, config)
    rng = np.random.default_rng(config.seed)
    rows, spent = [], 0.0
    for update in range(1, max(updates) + 1):
        batch = agent.draw(replay, rng)
        started = time.process_time()
        agent.update(data.task, batch, update / max(updates))
        spent += time.process_time() - started
        if update in updates:
            rows.append({"updates": update, "ms": round(1000 * spent / update, 1)})
            rows[-1] |= _judge(agent, data, returns, train, test)
    return rows


def _discounted(rewards: Floats, discount: float) -> Floats:
    """Monte-Carlo returns (N, T) of rewards (N, T); after the end the mean of the last ones goes on."""
    returns = np.zeros_like(rewards)
    value = rewards[:, -TAIL:].mean(1) / (1 - discount)
    for step in reversed(range(rewards.shape[1])):
        value = rewards[:, step] + discount * value
        returns[:, step] = value
    return returns


def _filled_replay(data: Episodes, returns: Floats, episodes: NDArray[np.int64], config: Config) -> Replay:
    """The episodes, each action followed by its return."""
    steps, actions = data.actions.shape[1:]
    replay = Replay(None, len(episodes) * steps, actions + 1, data.frames.shape[2], config.env.frame_stack)
    for episode in episodes:
        replay.begin(data.frames[episode, 0])
        for step in range(steps):
            action = np.append(data.actions[episode, step], returns[episode, step]).astype(np.float32)
            replay.add(action, float(data.rewards[episode, step]), False, data.frames[episode, step + 1])
    return replay


@torch.no_grad()
def _judge(
    agent: SacAgent, data: Episodes, returns: Floats, train: NDArray[np.int64], test: NDArray[np.int64]
) -> dict[str, Any]:
    """R2 of the returns in seen and unseen episodes, and of the state in unseen ones."""
    (seen, seen_q), (unseen, unseen_q) = (_read(agent, data, episodes) for episodes in (train, test))
    seen_g, unseen_g = (returns[tuple(zip(*_places(agent, data, some), strict=True))] for some in (train, test))
    seen_s, unseen_s = (np.stack([data.states[e, t] for e, t in _places(agent, data, some)]) for some in (train, test))
    x = np.c_[seen, np.ones(len(seen))]
    map_ = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ seen_s)
    told = np.c_[unseen, np.ones(len(unseen))] @ map_
    return {
        "returns_unseen": round(_r2(unseen_q, unseen_g), 3),
        "returns_seen": round(_r2(seen_q, seen_g), 3),
        "bias_unseen": round(float((unseen_q - unseen_g).mean()), 2),
        "state_unseen": [round(_r2(told[:, i], unseen_s[:, i]), 2) for i in range(told.shape[1])],
    }


def _places(agent: SacAgent, data: Episodes, episodes: NDArray[np.int64]) -> list[tuple[int, int]]:
    first = agent.config.env.frame_stack - 1
    return [(int(e), t) for e in episodes for t in range(first, data.actions.shape[1], EVERY)]


def _read(agent: SacAgent, data: Episodes, episodes: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Features (N, F) and values (N,) of the episodes' steps."""
    places, count = _places(agent, data, episodes), agent.config.env.frame_stack
    features, values = [], []
    for start in range(0, len(places), 256):
        some = places[start : start + 256]
        policy = agent.encoder(data.stacks(some, count), 0).policy  # (B, F)
        actions = torch.from_numpy(np.stack([data.actions[e, t] for e, t in some]))
        features.append(policy)
        values.append(torch.minimum(*agent._heads(data.task).critic(policy, actions)))
    return torch.cat(features).numpy(), torch.cat(values).numpy()


def _r2(told: Floats, truth: Floats) -> float:
    return float(1 - np.square(told - truth).mean() / max(truth.var(), 1e-9))


def main() -> int:
    try:
        _main()
    except (CtrlFormerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="store episodes of a state oracle")
    recording.add_argument("task")
    recording.add_argument("--frames", type=int, default=40_000, help="of the oracle's training")
    recording.add_argument("--seed", type=int, default=1)
    recording.add_argument("--episodes", type=int, default=60, help="of each competence")
    recording.add_argument("--size", type=int, default=64, help="side of a frame in pixels")
    recording.add_argument("--file", type=Path, required=True)
    scoring = commands.add_parser("score", help="train on recorded episodes and score on held-out ones")
    scoring.add_argument("file", type=Path)
    scoring.add_argument("--preset", default="compact")
    scoring.add_argument("--set", nargs="*", type=setting, default=[], metavar="NAME=VALUE", help="settings to change")
    scoring.add_argument("--seed", nargs="+", type=int, default=[1])
    scoring.add_argument(
        "--episodes", type=int, help="of each competence, to train on; none: all that are not held out"
    )
    scoring.add_argument("--updates", nargs="+", type=int, default=[350, 700])
    scoring.add_argument("--out", type=Path, help="append one JSON line per row to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    if args.command == "record":
        record(args.task, args.frames, args.seed, args.episodes, args.size, args.file)
        return
    data = Episodes.load(args.file)
    size = {"env.image_size": data.frames.shape[2]}
    for seed in args.seed:
        plain = make_config([data.task], args.preset, None, seed, size)
        config = make_config([data.task], args.preset, None, seed, size | dict(args.set))
        changed = {name: new for name, (_, new) in differences(plain, config).items()}
        for row in score(data, config, args.episodes, args.updates):
            about = {"task": data.task, "seed": seed, "preset": args.preset, "settings": changed}
            show({**about, "episodes": args.episodes, **row}, args.out)


if __name__ == "__main__":
    sys.exit(main())
