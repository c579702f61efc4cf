"""State oracle: the project's SAC on the simulator's state in place of pixels and encoder.

Agent, losses, optimiser, replay and the rules of the loop are those of a training, so that a run of a minute shows
what the reinforcement-learning half can do with perfect features.

    python -m benchmarks.state_oracle --task reacher_easy --frames 20000 --seed 1 2 --set agent.n_step=1 --out FILE
    python -m benchmarks.state_oracle --summarise FILE
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ctrlformer.agents import SacAgent
from ctrlformer.config import Config, EncoderConfig, EnvConfig, differences
from ctrlformer.config.presets import make_config, overridden
from ctrlformer.encoders.contract import Encoder, Tokens
from ctrlformer.envs.pixels import PixelEnv
from ctrlformer.envs.suite import make_suite
from ctrlformer.envs.tasks import SUITE, action_repeat
from ctrlformer.nn.heads import feature_projection
from ctrlformer.nn.seeding import reproducible
from ctrlformer.replay import Replay
from ctrlformer.training.collect import EVALUATE, TRAIN, episode_seed

State = NDArray[Any]  # (S,) float32

RECENT = 5  # training episodes at the end of a run that diagnostics look at
BEST_RETURN = 1000.0


class StateEnv(PixelEnv):
    """A task of the suite whose observation is dm_control's own, flattened."""

    def __init__(self, task: str) -> None:
        self._state = make_suite(task, *SUITE[task], EnvConfig())
        super().__init__(task, self._state, action_repeat(task), EnvConfig(frame_stack=1))
        self.size = len(self._state.state())
        space: Any = gymnasium.spaces.Box(-np.inf, np.inf, (self.size,), np.float32)
        self.observation_space = space

    def _draw(self, size: int) -> Any:
        return self._state.state()

    def picture(self, size: int) -> NDArray[np.uint8]:
        """What pixels would show now, (size, size, 3)."""
        return self._state.pixels(size)


class StateReader:
    """A stack of one state."""

    def __init__(self, features: int) -> None:
        self.features = features

    def read(self, frame: State) -> State:
        return frame

    def stack(self, pixels: State) -> Tensor:
        return torch.from_numpy(pixels)[None]  # (1, S)


class StateEncoder(Encoder):
    """Normalised states, as they are (`identity`) or behind linear, LayerNorm, tanh (`projection`)."""

    def __init__(self, config: EncoderConfig, size: int, identity: bool) -> None:
        super().__init__(config, (1, size))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        self.mean: Tensor
        self.variance: Tensor
        self._batches = 0
        self.project = nn.Identity() if identity else feature_projection(size, config.feature_dim)
        self.features = self.contrastive_dim = size if identity else config.feature_dim

    @torch.no_grad()
    def observe(self, pixels: Tensor, task: int) -> None:
        """Take a batch (B, 1, S) into running mean and variance."""
        states = pixels[:, 0]  # (B, S)
        self._batches += 1
        weight = max(1 / self._batches, 1e-3)
        self.mean.lerp_(states.mean(0), weight)
        self.variance.lerp_((states - self.mean).square().mean(0), weight)

    def encode(self, observation: Tensor, task: int) -> Tokens:
        x = (observation[:, 0] - self.mean) * (self.variance + 1e-4).rsqrt()  # (B, S)
        features = self.project(x)
        return Tokens(features, features)


class StateAgent(SacAgent):
    """`SacAgent` with a `StateEncoder`."""

    def __init__(self, config: Config, states: int, identity: bool, seed: int) -> None:
        super().__init__(config, seed=seed)
        self.reader = StateReader(states)
        with reproducible(seed):
            self.encoder = StateEncoder(config.encoder, states, identity)
        self._make_targets()
        self._pass, self._target_pass = self.encoder, self.target_encoder
        self._make_optimisers()

    @torch.no_grad()
    def mean_actions(self, task: str, states: State) -> NDArray[np.float32]:
        """(N, S) to (N, A)."""
        features = self.encoder(torch.from_numpy(states)[:, None], 0).policy
        actions: NDArray[np.float32] = self._heads(task).actor.mean_action(features).numpy()
        return actions


def oracle_config(
    task: str, seed: int, preset_name: str, overrides: dict[str, Any], identity: bool
) -> tuple[Config, dict[str, Any]]:
    """A preset with changes, and these; whatever belongs to pixels is small or off."""
    pixels_off: dict[str, Any] = {
        "encoder.kind": "cnn",  # replaced before it is used
        "encoder.normalise_pixels": False,
        "agent.shift": 0,
        "agent.past_actions": 0,  # a state tells its speeds
        "agent.q_regularisation": False,
        "agent.contrastive": False,
        "training.precision": "fp32",
        "training.eval_episodes": 10,
    }
    if identity:
        with closing(StateEnv(task)) as env:
            pixels_off["encoder.feature_dim"] = env.size
    plain = make_config([task], preset_name, None, seed, pixels_off)
    config = overridden(plain, overrides)
    return config, {name: new for name, (_, new) in differences(plain, config).items()}


def run(config: Config, frames: int, identity: bool) -> dict[str, Any]:
    """Train on the config's task for so many frames; `training.frames` is the budget that schedules refer to."""
    started = time.monotonic()
    task, seed, settings = config.tasks[0], config.seed, config.training
    with ExitStack() as stack:
        env, *judges = (stack.enter_context(closing(StateEnv(task))) for _ in range(1 + settings.eval_episodes))
        agent = StateAgent(config, env.size, identity, seed)
        agent.add_task(task, env.action_dim)
        replay = Replay(None, settings.replay_capacity, env.action_dim, 1, 1, features=env.size)
        rng = np.random.default_rng((seed, 0, 0))
        curve: list[list[float]] = []
        returns: list[float] = []
        metrics: dict[str, Tensor] = {}
        recent: deque[list[float]] = deque(maxlen=RECENT)
        played = steps = 0
        for count, rewards, ended in collect(agent, env, replay, rng, settings.seed_steps):
            played, steps = played + count, steps + 1
            for _ in range(updates_due(config, steps)):
                metrics |= agent.update(task, agent.draw(replay, rng), played / settings.frames)
            if ended:
                returns.append(sum(rewards))
                recent.append(rewards)
            if played // settings.eval_every_frames > (played - count) // settings.eval_every_frames:
                scores = evaluate(agent, judges, first=played)
                curve.append([played, round(float(np.mean(scores)), 1), round(float(np.std(scores)), 1)])
            if played >= frames:
                break
    diagnostics = {name: round(float(value), 4) for name, value in metrics.items()}
    diagnostics["monte_carlo"] = round(monte_carlo(recent, config, env.action_repeat), 3)
    return oracle_line(frames, curve, returns, (time.monotonic() - started) / 60, diagnostics)


def oracle_line(
    frames: int, curve: list[list[float]], returns: list[float], minutes: float, diagnostics: dict[str, float]
) -> dict[str, Any]:
    """What is told of a run; `curve` has frames, mean and std of evaluations."""
    return {
        "frames": frames,
        "curve": curve,
        "auc": round(float(np.mean([mean for _, mean, _ in curve])) / BEST_RETURN, 4),
        "final": curve[-1][1],
        "training_returns": [round(value, 1) for value in returns],
        "minutes": round(minutes, 2),
        "diagnostics": diagnostics,
    }


def updates_due(config: Config, steps: int) -> int:
    """Updates that follow so many steps."""
    every, updates = config.agent.update_rounds(action_repeat(config.tasks[0]))
    return updates if steps >= config.training.seed_steps and steps % every == 0 else 0


def collect(
    agent: StateAgent, env: StateEnv, replay: Replay, rng: np.random.Generator, seed_steps: int
) -> Iterator[tuple[int, list[float], bool]]:
    """Play training episodes into the replay for ever: yields a step's frames, its episode's rewards so far, and
    whether that ended."""
    seed, steps, episode = agent.config.seed, 0, 0
    longest = agent.config.training.episode_frames or math.inf
    while True:
        state, _ = env.reset(seed=episode_seed(seed, TRAIN, 0, 0, episode))
        policy = agent.policy(env.task, explore=True)
        replay.begin(state)
        rewards: list[float] = []
        ended = False
        while not ended:
            at_random = steps < seed_steps
            action = rng.uniform(-1, 1, env.action_dim).astype(np.float32) if at_random else policy(state)
            state, reward, terminated, truncated, info = env.step(action)
            replay.add(action, reward, terminated, state)
            rewards.append(reward)
            cut = len(rewards) * env.action_repeat >= longest
            steps, ended = steps + 1, terminated or truncated or cut
            yield info["frames"], rewards, ended
        episode += 1


def evaluate(agent: StateAgent, envs: Sequence[StateEnv], first: int = 0) -> list[float]:
    """Returns with the mean action, one episode in each environment, side by side; `first` numbers them, as in a
    training, where every evaluation has episodes of its own."""
    seeds = [episode_seed(agent.config.seed, EVALUATE, first + number) for number in range(len(envs))]
    states = np.stack([env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)])
    totals, going = [0.0] * len(envs), set(range(len(envs)))
    while going:
        actions = agent.mean_actions(envs[0].task, states)
        for number in sorted(going):
            states[number], reward, terminated, truncated, _ = envs[number].step(actions[number])
            totals[number] += reward
            if terminated or truncated:
                going.remove(number)
    return totals


def monte_carlo(episodes: Sequence[list[float]], config: Config, frames_per_step: int) -> float:
    """Mean discounted return of all steps of recent episodes, in the critics' unit; after an episode's end its mean
    reward is taken to go on."""
    discount, values = config.agent.discount, []
    for rewards in episodes:
        value = float(np.mean(rewards)) / (1 - discount)
        for reward in reversed(rewards):
            value = reward + discount * value
            values.append(value)
    unit = frames_per_step if config.agent.rewards == "frame" else 1
    return float(np.mean(values)) / unit if values else 0.0


def summary(file: Path) -> str:
    """A Markdown table: one row per setting, task and budget."""
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for line in file.read_text().splitlines():
        row = json.loads(line)
        changes = ", ".join(f"{name}={value}" for name, value in sorted(row["settings"].items()))
        engine = "batched; " if row.get("batched") else ""
        groups.setdefault((row["task"], f"{engine}{row['encoder']}; {changes}", row["frames"]), []).append(row)
    text = "| task | frames | setting | seeds | AUC | final | training return | Q / Monte Carlo |\n"
    text += "|---|---|---|---|---|---|---|---|\n"
    best_first = sorted(
        groups.items(), key=lambda item: (item[0][0], item[0][2], -np.mean([row["auc"] for row in item[1]]))
    )
    for (task, setting, frames), rows in best_first:
        auc, final = [row["auc"] for row in rows], [row["final"] for row in rows]
        training = np.mean([np.mean(row["training_returns"] or [0.0]) for row in rows])
        q, returns = (np.mean([row["diagnostics"].get(name, 0.0) for row in rows]) for name in ("q", "monte_carlo"))
        text += f"| {task} | {frames} | {setting} | {len(rows)} | {np.mean(auc):.3f} ± {np.std(auc):.3f} "
        text += f"| {np.mean(final):.0f} ± {np.std(final):.0f} | {training:.0f} | {q:.1f} / {returns:.1f} |\n"
    return text


def show(row: dict[str, Any], file: Path | None) -> None:
    """Print a line of JSON, and append it to the file."""
    print(json.dumps(row), flush=True)
    if file:
        with file.open("a") as out:
            out.write(json.dumps(row) + "\n")


def setting(text: str) -> tuple[str, Any]:
    """`agent.n_step=3` as name and value."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", default=["reacher_easy"])
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--seed", nargs="+", type=int, default=[1])
    parser.add_argument("--preset", default="compact")
    parser.add_argument("--encoder", choices=["identity", "projection"], default="projection")
    parser.add_argument("--set", nargs="*", type=setting, default=[], metavar="NAME=VALUE", help="settings to change")
    parser.add_argument("--out", type=Path, help="append one JSON line per run to this file")
    parser.add_argument("--summarise", type=Path, metavar="FILE", help="print a table of such a file, and stop")
    args = parser.parse_args()
    if args.summarise:
        print(summary(args.summarise), end="")
        return
    torch.set_num_threads(1)
    identity = args.encoder == "identity"
    for task in args.task:
        for seed in args.seed:
            config, changed = oracle_config(task, seed, args.preset, dict(args.set), identity)
            row = {"task": task, "seed": seed, "encoder": args.encoder, "settings": changed}
            row |= run(config, args.frames, identity)
            show(row, args.out)


if __name__ == "__main__":
    main()
