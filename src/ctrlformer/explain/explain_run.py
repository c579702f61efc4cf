"""`ctrlformer explain`: writes into RUN/explain what the agent looks at, and how alike its tasks are to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctrlformer import api
from ctrlformer.agents import SacAgent
from ctrlformer.errors import CheckpointError, RunError
from ctrlformer.explain.attention_maps import METHODS, attention_maps
from ctrlformer.explain.drawings import captioned, chord_diagram, heat_map, overlaid, sheet
from ctrlformer.explain.episodes import Episode, record_episode, share_on_moving
from ctrlformer.explain.similarity import Similarity, output_similarity, token_similarity
from ctrlformer.replay import rehearsal
from ctrlformer.storage import checkpoint
from ctrlformer.storage.checkpoint import TENSOR_BYTES, unpack
from ctrlformer.storage.files import JSON, read_bounded, reason, to_json, write_atomic
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.training.collect import film
from ctrlformer.training.state import TrainerState

INDEX = "explain.json"
MOMENTS = 6  # of an episode that are shown
FILM_SIZE = 336


def main(run: Path, task: str | None, video: bool, say: Callable[[str], None]) -> Path:
    """Explain every task the run has learnt, or one; answers with the folder."""
    trained = api.load(run)
    if not isinstance(trained.learner, SacAgent):
        raise RunError(f"{run} was learnt with a world model: explain shows what an encoder reads, and it has none")
    explainer = Explainer(trained.run, trained.learner, say)
    wanted = [trained.known_task(task)] if task else trained.tasks
    index: dict[str, JSON] = {"tasks": [explainer.task(name, video) for name in wanted]}
    if len(trained.tasks) > 1:
        index["similarity"] = explainer.similarities()
    explainer.write(INDEX, to_json(index))
    return explainer.folder


class Explainer:
    """Looks at one run's agent and writes what it finds."""

    def __init__(self, run: RunFolder, agent: SacAgent, say: Callable[[str], None]) -> None:
        self.run, self.agent, self.folder = run, agent, run.explained
        self._say = say
        self._state = TrainerState.read(checkpoint.load(run.checkpoints), run.config)

    def task(self, task: str, video: bool) -> dict[str, JSON]:
        """Everything about one task."""
        self._say(f"{task}: playing an episode and looking at what its token reads")
        episode = record_episode(self.agent, task, self.run.config.env, self.run.config.seed)
        maps = attention_maps(self.agent, task, episode.observations)
        name = task.replace("/", "+")
        found: dict[str, JSON] = {
            "task": task,
            "method": METHODS[self.run.config.encoder.kind],
            "return": episode.total,
            "attention": self.write(f"{name}-attention.png", _moments(episode.observations, maps)),
            "share_on_moving": self._shares(task, episode, maps),
            "after_later_stages": self._after_later_stages(task, name, episode),
            "video": self._video(task, name, episode, maps) if video else None,
        }
        return found

    def _shares(self, task: str, episode: Episode, maps: NDArray[np.float32]) -> dict[str, float] | None:
        """How much of the attention lies on what moves, beside an untrained agent and beside looking everywhere."""
        if episode.moving is None:
            return None
        untrained = attention_maps(self._untrained(), task, episode.observations)
        shares = {
            "trained": share_on_moving(maps, episode.moving),
            "untrained": share_on_moving(untrained, episode.moving),
            "pixels": float(episode.moving.mean()),
        }
        self._say(
            f"  attention on what moves: {shares['trained']:.1%} trained, {shares['untrained']:.1%} untrained;"
            f" it is {shares['pixels']:.1%} of the picture"
        )
        return shares

    def _untrained(self) -> SacAgent:
        """The same networks as they began; they see pixels normalised as the trained ones do."""
        agent = self._agent_with(self.agent.tasks)
        if agent.encoder.statistics is not None and self.agent.encoder.statistics is not None:
            agent.encoder.statistics.load_state_dict(self.agent.encoder.statistics.state_dict())
        return agent

    def _after_later_stages(self, task: str, name: str, episode: Episode) -> list[dict[str, JSON]]:
        """The same frames through the encoder at the end of the task's own stage and of every later one (Figure 6)."""
        stages = self.run.config.stages
        own = next(number for number, stage in enumerate(stages) if task in stage.tasks)
        moments = episode.observations[_spread(len(episode.observations))]
        before = self._agent_after(own)
        if before is None:
            return []
        then = attention_maps(before, task, moments)
        found: list[dict[str, JSON]] = []
        for number in range(own + 1, len(stages)):
            agent = self._agent_after(number)
            if agent is None:
                continue
            now = attention_maps(agent, task, moments)
            file = self.write(f"{name}-after-stage{number}.png", _before_and_after(moments, then, now))
            found.append({"stage": number, "tasks": stages[number].tasks, "file": file, "similarity": alike(then, now)})
            self._say(f"  after {' + '.join(stages[number].tasks)}: maps alike by {found[-1]['similarity']:.2f}")
        return found

    def _agent_after(self, stage: int) -> SacAgent | None:
        """The agent with its encoder as it was at the end of a stage; none if the run has not kept it."""
        file = self.run.stage_encoder(stage)
        try:
            tensors = unpack(file, read_bounded(file, TENSOR_BYTES))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunError(f"cannot read {file}: {reason(error)}") from error
        stages = self.run.config.stages[: stage + 1]
        agent = self._agent_with([task for one in stages for task in one.tasks])
        try:
            agent.encoder.load_state_dict(tensors)
        except RuntimeError as error:
            raise CheckpointError(f"{file} does not fit this run: {str(error).splitlines()[0]}") from None
        return agent

    def _agent_with(self, tasks: list[str]) -> SacAgent:
        """A new agent with these tasks."""
        agent = SacAgent(self.run.config, self.agent.device, self.run.config.seed)
        for task in tasks:
            agent.add_task(task, self.agent.action_dims[task])
        return agent

    def similarities(self) -> list[dict[str, JSON]]:
        """Between all tasks whose stages have ended."""
        observed = [
            rehearsal.load(self.run.rehearsal_buffer(task), task, checksum, self.agent.outputs)
            for task, checksum in self._state.kept.items()
        ]
        tokens, outputs = token_similarity(self.agent), output_similarity(self.agent, observed)
        return [self._similarity(name, found) for name, found in (("tokens", tokens), ("outputs", outputs)) if found]

    def _similarity(self, name: str, found: Similarity) -> dict[str, JSON]:
        chord = self.write(f"{name}-chord.png", chord_diagram(found))
        heat = self.write(f"{name}-heat.png", heat_map(found))
        return {**found._asdict(), "chord": chord, "heat": heat}

    def _video(self, task: str, name: str, episode: Episode, maps: NDArray[np.float32]) -> str:
        path = self.folder / f"{name}.mp4"
        with film(path, FILM_SIZE) as show:
            for pixels, attention, earned in zip(episode.observations, maps, episode.earned, strict=True):
                picture = overlaid(pixels[..., -3:], attention)
                show(captioned(picture, f"{task}   return {earned:.0f}", FILM_SIZE))
        return path.name

    def write(self, name: str, data: bytes) -> str:
        """A file of the explanation; answers with its name."""
        path = self.folder / name
        try:
            self.folder.mkdir(exist_ok=True)
            write_atomic(path, data)
        except OSError as error:
            raise RunError(f"cannot write {path}: {reason(error)}") from error
        return name


def alike(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """Mean cosine between maps (N, H, W) of the same frames: 1 is the same places."""
    one, other = first.reshape(len(first), -1), second.reshape(len(second), -1)
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(np.mean((one * other).sum(1) / np.maximum(norms, 1e-12)))


def _spread(count: int) -> NDArray[np.int64]:
    """Moments of an episode, evenly over it."""
    return np.unique(np.linspace(0, count - 1, min(MOMENTS, count)).astype(np.int64))


def _moments(observations: NDArray[np.uint8], maps: NDArray[np.float32]) -> bytes:
    chosen = _spread(len(observations))
    frames = [observations[i][..., -3:] for i in chosen]
    return sheet([frames, [overlaid(frame, maps[i]) for frame, i in zip(frames, chosen, strict=True)]])


def _before_and_after(observations: NDArray[np.uint8], then: NDArray[np.float32], now: NDArray[np.float32]) -> bytes:
    """Two rows: as the encoder looked at the end of the task's own stage, and as it looks later."""
    frames = [pixels[..., -3:] for pixels in observations]
    rows = [[overlaid(frame, one) for frame, one in zip(frames, maps, strict=True)] for maps in (then, now)]
    return sheet(rows)
