"""Every table and figure of the paper's evaluation, as data: which curricula, by which methods, at which scale.

An experiment is a grid of curricula and methods; a scale says what a method is, for how many frames it learns a task,
and with how many seeds. `plan.py` turns the two into runs. Tasks bear the paper's names; where no such task can be
had, a scale's `stand_ins` name another, and every table says so.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from ctrlformer.errors import ConfigError

PAPER_FRAMES = 500_000
ENCODER_LR_SCALES = (0.02, 0.04, 0.05, 0.08, 0.2, 1.0)  # the paper finds 0.04 to 0.08 right
WEIGHTS = "encoder.weights"


class Curriculum(NamedTuple):
    """Tasks learnt one after the other, or all together."""

    tasks: tuple[str, ...]
    together: bool = False

    def __str__(self) -> str:
        """
        >>> print(Curriculum(("reacher_easy", "reacher_hard")), "|", Curriculum(("a", "b"), together=True))
        reacher_easy, then reacher_hard | a with b
        """
        return (" with " if self.together else ", then ").join(self.tasks)

    @property
    def before_last(self) -> Curriculum | None:
        """What is learnt before the last task; none if that is the first, or all are learnt together."""
        return Curriculum(self.tasks[:-1]) if len(self.tasks) > 1 and not self.together else None


@dataclass(frozen=True)
class MethodSettings:
    """A preset, and what is changed in it."""

    preset: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    transfer: Mapping[str, Any] = field(default_factory=dict)
    """Changes of settings `transfer.*` for every stage after the first, which is trained once for all of them."""


@dataclass(frozen=True)
class Scale:
    """How large an experiment is made."""

    name: str
    means: str
    frames: int
    """Of each task."""
    seeds: int
    methods: Mapping[str, MethodSettings]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Changes for every method."""
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    """Tasks of the paper that another task stands for."""


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    name: str
    shows: str
    curricula: tuple[Curriculum, ...]
    methods: Mapping[str, str]
    """The paper's methods, and which of a scale's each of them is."""
    paper_rows: str | None = None
    """Whose scores the paper prints for it; none where it draws curves only."""
    effects: bool = False
    """Whether maintainability and transferability are computed, as in the paper's Figure 1."""


def pair(first: str, second: str) -> tuple[Curriculum, ...]:
    """Both tasks from scratch, and the second after the first."""
    return Curriculum((first,)), Curriculum((second,)), Curriculum((first, second))


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


WALKER = pair("walker_stand", "walker_walk")
CARTPOLE = pair("cartpole_swingup", "cartpole_swingup_sparse")
REACHER = pair("reacher_easy", "reacher_hard")
FINGER = pair("finger_turn_easy", "finger_turn_hard")
SEQUENCE = ("cartpole_balance", "cartpole_balance_sparse", "cartpole_swingup", "cartpole_swingup_sparse")

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "same_domain",
            "Table 1: transfer to a harder task of the same domain, four pairs",
            (*CARTPOLE, *REACHER, *WALKER, *FINGER),
            _same("drq", "dreamer", "resnet50_sac", "ctrlformer"),
            paper_rows="same_domain",
        ),
        Experiment(
            "cross_domain",
            "Table 2: transfer between domains, both ways",
            tuple(
                Curriculum(tasks)
                for tasks in (
                    ("reacher_easy",),
                    ("finger_turn_easy",),
                    ("reacher_easy", "finger_turn_easy"),
                    ("finger_turn_easy", "reacher_easy"),
                )
            ),
            _same("drq", "resnet50_sac", "ctrlformer"),
            paper_rows="cross_domain",
        ),
        Experiment(
            "sequence_of_four",
            "four tasks: each from scratch, all together, one after the other",
            (*(Curriculum((task,)) for task in SEQUENCE), Curriculum(SEQUENCE, together=True), Curriculum(SEQUENCE)),
            _same("ctrlformer"),
            paper_rows="sequence_of_four",
        ),
        Experiment(
            "manipulation",
            "a robot arm: transfer between two reaching tasks",
            pair("reach_ball", "reach_chess_piece"),
            _same("drq", "ctrlformer"),
            paper_rows="manipulation",
        ),
        Experiment(
            "contrastive_ablation",
            "CtrlFormer with and without the contrastive loss, eight tasks from scratch",
            tuple(one for group in (CARTPOLE, REACHER, WALKER, FINGER) for one in group[:2]),
            {
                "ctrlformer_without_contrastive": "ctrlformer_without_contrastive",
                "ctrlformer": "ctrlformer_with_contrastive",
            },
            paper_rows="contrastive_ablation",
        ),
        Experiment(
            "q_regularisation_ablation",
            "CtrlFormer with and without DrQ's regularisation, and DrQ without it",
            REACHER,
            {
                "ctrlformer": "ctrlformer_with_q_regularisation",
                "ctrlformer_without_q_regularisation": "ctrlformer_without_q_regularisation",
                "drq_without_q_regularisation": "drq_without_q_regularisation",
            },
            paper_rows="q_regularisation_ablation",
            effects=True,
        ),
        Experiment(
            "contrastive_on_baselines",
            "DrQ with and without the contrastive loss beside CtrlFormer",
            WALKER[-1:],
            _same("drq", "drq_contrastive") | {"ctrlformer": "ctrlformer_with_contrastive"},
            paper_rows="contrastive_on_baselines",
        ),
        Experiment(
            "encoder_lr_curves",
            "learning curves of the second task for several encoder learning rates (alpha_l)",
            CARTPOLE[-1:],
            _same(*(f"ctrlformer_encoder_lr_{scale:g}" for scale in ENCODER_LR_SCALES)),
        ),
        Experiment(
            "effect_bars",
            "Figure 1: what is kept of the first task, and what it helps the second",
            (*CARTPOLE, *FINGER),
            _same("drq", "ctrlformer"),
            paper_rows="same_domain",
            effects=True,
        ),
    )
}


def _with_encoder_lrs(methods: Mapping[str, MethodSettings]) -> dict[str, MethodSettings]:
    own = methods["ctrlformer"]
    return dict(methods) | {
        f"ctrlformer_encoder_lr_{scale:g}": MethodSettings(own.preset, own.overrides, {"encoder_lr_scale": scale})
        for scale in ENCODER_LR_SCALES
    }


# On a CPU CtrlFormer is compact, which goes without the contrastive loss and the regularisation of Q: the ablations
# switch them on, one at a time. DrQ has its own settings, two views and all, but for a smaller batch.
_CPU_BATCH = {"agent.batch_size": 128}
_NARROW = {"agent.head_width": 32, "agent.projector_hidden": 16, "agent.projector_dim": 8}
_PAPER_TRANSFER = {"transfer.source": "previous", "transfer.heads": "fresh", "transfer.warmup_updates": 0}
_RESNET = {"encoder.kind": "resnet50", "encoder.normalise_pixels": False, "agent.shift": 0, "agent.contrastive": False}
_TINY_RESNET = _RESNET | {"encoder.resnet_size": 32, "encoder.resnet_width": 2}
_TINY_DREAMER = {f"dreamer.{size}": 8 for size in ("deterministic", "stochastic", "hidden", "head_width", "conv_width")}
_TINY_DREAMER |= {"dreamer.frame_size": 16, "dreamer.sequence_length": 5, "dreamer.horizon": 3}
_CONTRASTIVE, _NOT_CONTRASTIVE = {"agent.contrastive": True}, {"agent.contrastive": False}
_REGULARISED, _NOT_REGULARISED = {"agent.q_regularisation": True}, {"agent.q_regularisation": False}

SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            "paper",
            "the paper's own: its presets, 500,000 frames, 5 seeds",
            frames=PAPER_FRAMES,
            seeds=5,
            methods=_with_encoder_lrs(
                {
                    "ctrlformer": MethodSettings("paper"),
                    "drq": MethodSettings("drq"),
                    "dreamer": MethodSettings("dreamer"),
                    "resnet50_sac": MethodSettings("resnet50_sac"),
                    "drq_contrastive": MethodSettings("drq_contrastive"),
                    "ctrlformer_with_contrastive": MethodSettings("paper"),
                    "ctrlformer_without_contrastive": MethodSettings("paper", _NOT_CONTRASTIVE),
                    "ctrlformer_with_q_regularisation": MethodSettings("paper"),
                    "ctrlformer_without_q_regularisation": MethodSettings("paper", _NOT_REGULARISED),
                    "drq_without_q_regularisation": MethodSettings("drq", _NOT_REGULARISED),
                }
            ),
            stand_ins={"reach_ball": "manipulation/reach_site", "reach_chess_piece": "manipulation/reach_duplo"},
        ),
        Scale(
            "cpu",
            "presets compact, dreamer_compact and, with batches of 128, drq; 100,000 frames, 2 seeds",
            frames=100_000,
            seeds=2,
            methods=_with_encoder_lrs(
                {
                    "ctrlformer": MethodSettings("compact"),
                    "drq": MethodSettings("drq", _CPU_BATCH),
                    "dreamer": MethodSettings("dreamer_compact"),
                    "resnet50_sac": MethodSettings("compact", _RESNET),
                    "drq_contrastive": MethodSettings("drq_contrastive", _CPU_BATCH),
                    "ctrlformer_with_contrastive": MethodSettings("compact", _CONTRASTIVE),
                    "ctrlformer_without_contrastive": MethodSettings("compact"),
                    "ctrlformer_with_q_regularisation": MethodSettings("compact", _REGULARISED),
                    "ctrlformer_without_q_regularisation": MethodSettings("compact"),
                    "drq_without_q_regularisation": MethodSettings("drq", _CPU_BATCH | _NOT_REGULARISED),
                }
            ),
            settings={"training.eval_episodes": 5, **_PAPER_TRANSFER},
            stand_ins={"reach_ball": "manipulation/reach_site", "reach_chess_piece": "manipulation/reach_duplo"},
        ),
        Scale(
            "smoke",
            "preset tiny, and narrow drq, on toy tasks, 60 frames, 1 seed: shows that all parts work, and nothing else",
            frames=60,
            seeds=1,
            methods=_with_encoder_lrs(
                {
                    "ctrlformer": MethodSettings("tiny"),
                    "drq": MethodSettings("drq", _NARROW),
                    "dreamer": MethodSettings("dreamer_compact", _TINY_DREAMER),
                    "resnet50_sac": MethodSettings("tiny", _TINY_RESNET),
                    "drq_contrastive": MethodSettings("drq_contrastive", _NARROW),
                    "ctrlformer_with_contrastive": MethodSettings("tiny"),
                    "ctrlformer_without_contrastive": MethodSettings("tiny", _NOT_CONTRASTIVE),
                    "ctrlformer_with_q_regularisation": MethodSettings("tiny", _REGULARISED),
                    "ctrlformer_without_q_regularisation": MethodSettings("tiny"),
                    "drq_without_q_regularisation": MethodSettings("drq", _NARROW | _NOT_REGULARISED),
                }
            ),
            settings={
                "env.image_size": 48,
                "agent.batch_size": 4,
                "training.seed_steps": 10,
                "training.replay_capacity": 1000,
                "training.eval_every_frames": 30,
                "training.eval_episodes": 1,
                "training.final_episodes": 1,
                "training.checkpoint_every_frames": 20,
                "training.log_every_steps": 10,
                "training.precision": "fp32",  # or every process would probe for the faster one
                "training.tensorboard": False,
                "transfer.kept_observations": 20,
            },
            stand_ins={
                "cartpole_balance": "toy/slide",
                "cartpole_balance_sparse": "toy/slide_sparse",
                "cartpole_swingup": "toy/reach",
                "cartpole_swingup_sparse": "toy/reach_sparse",
                "reacher_easy": "toy/reach",
                "reacher_hard": "toy/reach_sparse",
                "walker_stand": "toy/reach",
                "walker_walk": "toy/slide",
                "finger_turn_easy": "toy/slide",
                "finger_turn_hard": "toy/slide_sparse",
                "reach_ball": "toy/reach",
                "reach_chess_piece": "toy/slide",
            },
        ),
    )
}

Named = TypeVar("Named")


def named(kind: str, name: str, known: Mapping[str, Named]) -> Named:
    """The one of that name; a `ConfigError` suggests the nearest.

    >>> named("scale", "cpu", SCALES).frames
    100000
    """
    check_names(kind, [name], known)
    return known[name]


def check_names(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """A `ConfigError` for the first name that is not known."""
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
            raise ConfigError(f"unknown {kind} {name!r}: {hint}")
