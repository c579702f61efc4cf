"""Settings of later stages: what a new task starts from, and how old ones are protected. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ctrlformer.config.validate import at_least, at_most, positive, share

SOURCES = ("auto", "previous", "none")  # values of transfer.source beside the names of tasks


@dataclass(frozen=True)
class TransferConfig:
    """How an agent that knows tasks takes up the next one."""

    encoder_lr_scale: float = 0.05
    """Encoder's learning rate after the first stage, as a multiple of what it was; the paper takes 0.04 to 0.08."""
    source: str = "previous"
    """The earlier task whose token, pixel statistics and heads a new task starts from. TASK: this one; auto: probe old
    policies and random actions in the new task; take the best policy's task if it clearly beats random actions, else
    the one that looks most like the new task; previous: the task before, or if heads are copied the newest with as many
    actions; none: all is new."""
    heads: Literal["auto", "fresh", "copy"] = "fresh"
    """Actor and critics of a new task. copy: the source's, if it has as many actions; fresh: new ones; auto: copied if
    source auto finds a policy that clearly beats random actions, and with source TASK; else new ones."""
    warmup_updates: int = 0
    """Updates of a task with copied heads in which critics learn alone, at a learning rate that rises from zero."""
    train_token: bool = True
    """Whether the copied token learns; in the authors' released code it never does."""
    temperature: float | None = None
    """Temperature of a new task, held fixed; none starts at agent.init_temperature and learns it."""
    random_start: bool = False
    """Begin with training.seed_steps random steps even where heads were copied."""
    protect: Literal["none", "rehearse", "freeze", "l2", "ewc", "packnet"] = "none"
    """Old tasks. none: only the slow encoder; rehearse: old tokens' outputs are held on the rehearsal buffer; freeze:
    only the new token and heads learn; l2, ewc: moving the encoder's weights costs, for ewc by what old policies need;
    packnet: each stage owns a share of the encoder's weights."""
    penalty_weight: float = 1e4
    """Weight of l2's and ewc's penalty, as a multiple of the critic's loss, or of 1 where that is less."""
    packnet_share: float = 0.5
    """Share of the free weights that a stage keeps; the rest is free for later stages."""
    kept_observations: int = 2000
    """Observations in a task's rehearsal buffer, stored at its stage's end; drift is measured on them, too."""
    rehearsal_batch: int = 64
    """Observations of the rehearsal buffer in every update."""
    rehearsal_weight: float = 10.0
    """Weight of holding old outputs, as a multiple of the critic's loss, or of 1 where that is less."""
    retest_every_frames: int | None = None
    """Frames between two retests of the earlier tasks during a stage; none retests at its end only."""

    def __post_init__(self) -> None:
        at_least(1, self, "kept_observations", "rehearsal_batch")
        at_least(0, self, "warmup_updates")
        at_most(1 << 20, self, "kept_observations", "rehearsal_batch")
        if self.retest_every_frames is not None:
            at_least(1, self, "retest_every_frames")
        positive(self, "encoder_lr_scale", "rehearsal_weight", "penalty_weight", "packnet_share")
        share(self, "packnet_share")
        if self.temperature is not None:
            positive(self, "temperature")
