"""Every setting of a training, as frozen dataclasses, and their JSON form.

Standard library only, so that `ctrlformer --help` starts at once. The defaults are the paper's (its text
and appendix); the other presets are in `presets.py`, each as its differences from these.
"""

from __future__ import annotations

import dataclasses
import json
import re
import reprlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from ctrlformer.config.decode import decode
from ctrlformer.config.dreamer import DreamerConfig
from ctrlformer.config.transfer import SOURCES, TransferConfig
from ctrlformer.config.validate import at_least, at_most, positive, share
from ctrlformer.errors import ConfigError

MOST_TASKS = 1000

Precision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True)
class EnvConfig:
    """How a task is shown to the agent."""

    image_size: int = 84
    """Height and width of a frame in pixels."""
    frame_stack: int = 3
    """Consecutive frames in one observation."""
    action_repeat: int | None = None
    """Frames per step; none takes the task's own (the paper's table, DrQ's for the rest)."""
    render: Literal["fast", "exact"] = "fast"
    """fast: smaller shadow map and buffer, almost the same pixels; exact: dm_control's own."""

    def __post_init__(self) -> None:
        at_least(1, self, "image_size", "frame_stack")
        at_most(1024, self, "image_size")
        at_most(16, self, "frame_stack")
        if self.action_repeat is not None:
            at_least(1, self, "action_repeat")
            at_most(10_000, self, "action_repeat")


@dataclass(frozen=True)
class EncoderConfig:
    """From stacked frames to one policy token per task and one contrastive token."""

    kind: Literal["ctrlformer", "places", "conv", "cnn", "resnet50"] = "ctrlformer"
    """ctrlformer: the paper's pyramid Vision Transformer; places: convolutions to a fine and a coarse map, in which a
    policy token finds the positions of what it looks for; conv: strided convolutions to a small map, of which a policy
    token reads every cell by weights of its own; cnn: DrQ's four convolutions; resnet50: one trained layer on what a
    frozen ImageNet ResNet-50 makes of each frame."""
    stem: Literal["patch", "conv"] = "patch"
    """patch: one linear map per patch (the paper); conv: strided convolutions after it, down to 6x6 or less."""
    patch_size: int = 6
    """Side of a patch in pixels."""
    stem_width: int = 32
    """Width of a patch before the conv stem's convolutions widen it to D."""
    dim: int = 192
    """Width D of every token."""
    heads: int = 3
    """Attention heads."""
    blocks_per_stage: int = 3
    """Transformer blocks in each of the pyramid's three levels."""
    mlp_ratio: int = 4
    """Hidden width of a block's MLP, as a multiple of D."""
    pooling: Literal["max2", "max3_mlp"] = "max2"
    """Between levels. max2: 2x2 max, stride (2,1) then (1,2); max3_mlp: 3x3, (1,2) then (2,1), then an MLP."""
    positions: Literal["patches", "all"] = "patches"
    """Which tokens get a learned position: the patches only, or the special tokens as well."""
    init: Literal["vit", "xavier", "orthogonal"] = "vit"
    """Weights at the start. vit: normal with std 0.02; xavier: as large as their width allows; orthogonal: linear and
    convolution layers as in DrQ and the authors' released code."""
    position_scale: float = 0.02
    """Standard deviation of positions and tokens at the start."""
    feature_dim: int = 50
    """Width of a policy token's output, which actor and critics read; with cnn, of their own projections; with places a
    quarter of it is the number of queries to each map."""
    feature_tanh: bool = True
    """Whether the output passes through tanh; always with cnn and conv, never with places."""
    scale_pixels: bool = True
    """Divide pixels by 255."""
    normalise_pixels: bool = False
    """Subtract each task's running mean image and divide by the running std of what is left."""
    task_attention: Literal["joint", "causal"] = "joint"
    """What tokens see. joint: all see all (the paper); causal: patches see patches, a policy token sees patches and
    the tokens of earlier tasks, so that a new task cannot change what an old one computes."""
    weights: str | None = None
    """File of resnet50's weights, safetensors; docs/howto-resnet.md tells how to get it."""
    weights_sha256: str | None = None
    """The file's SHA-256, or its first 8 digits or more; none takes the file as it is. config.json of a run has it
    whole, and the run resumes with no other file."""
    resnet_size: int = 224
    """Side in pixels to which frames are resized for resnet50; fewer are quicker."""
    resnet_width: int = 64
    """Channels of resnet50's first convolution; the others follow. 64 is ResNet-50, fewer are for tests."""

    def __post_init__(self) -> None:
        at_least(1, self, "patch_size", "stem_width", "dim", "heads", "blocks_per_stage", "mlp_ratio", "feature_dim")
        at_least(1, self, "resnet_width")
        at_least(32, self, "resnet_size")
        at_most(8192, self, "patch_size", "stem_width", "dim", "heads", "feature_dim", "resnet_size", "resnet_width")
        at_most(64, self, "blocks_per_stage", "mlp_ratio")
        if self.kind == "ctrlformer" and self.dim % self.heads:
            raise ConfigError(f"encoder.dim {self.dim} is not a multiple of encoder.heads {self.heads}: change one")
        positive(self, "position_scale")
        if self.weights is not None and self.kind != "resnet50":
            raise ConfigError(f"encoder.weights is for encoder.kind resnet50, not {self.kind}: leave it out")
        if self.weights_sha256 is not None and not re.fullmatch("[0-9a-f]{8,64}", self.weights_sha256):
            raise ConfigError(f"encoder.weights_sha256 {self.weights_sha256!r}: give 8 to 64 digits 0-9 and a-f")


@dataclass(frozen=True)
class AgentConfig:
    """SAC with DrQ's regularisation and BYOL beside it, or Dreamer, which has more settings of its own."""

    kind: Literal["sac", "dreamer"] = "sac"
    """sac: everything below; dreamer: a latent world model in place of encoder and critics. Of what is below it takes
    batch_size (sequences), adam_beta1, adam_beta2, gradient_clip, discount, updates_per_step and update_every."""
    batch_size: int = 512
    learning_rate: float = 1e-4
    late_learning_rate: float | None = None
    """Learning rate for the last part of a stage; none keeps the first to the end."""
    late_from: float = 0.6
    """Share of a stage after which the late learning rate holds."""
    rate_schedule: Literal["step", "linear"] = "step"
    """How the late learning rate is reached. step: at once, at late_from; linear: in a straight line over the stage."""
    encoder_lr_scale: float = 1.0
    """Encoder's learning rate as a multiple of the heads'."""
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    weight_decay: float = 0.1
    """AdamW's decay."""
    decay_on: Literal["encoder_matrices", "all"] = "encoder_matrices"
    """What decays: the encoder's weight matrices, or every parameter."""
    gradient_clip: float | None = None
    """Largest norm of the encoder's and critics' gradient; none never clips."""
    rewards: Literal["step", "frame"] = "step"
    """What critics learn. step: rewards summed over a step's frames; frame: their mean, so that values have the same
    scale whatever the action repeat."""
    discount: float = 0.99
    n_step: int = 1
    """Steps of reward before the critic's estimate takes over."""
    updates_per_step: int = 1
    """Gradient updates in a round."""
    update_every: int = 1
    """Steps between two rounds of updates."""
    frames_per_update: int | None = None
    """Frames for each update whatever the action repeat, in place of updates_per_step and update_every: several updates
    a step where it has more frames, or one in several steps."""
    actor_every: int = 2
    """Updates between two updates of actor and temperature."""
    target_every: int = 2
    """Updates between two updates of the target Q heads."""
    critic_tau: float = 0.01
    """How far the target Q heads move towards the online ones."""
    target_encoder: Literal["ema", "online"] = "ema"
    """Encoder of the TD targets. ema: a copy that moves with the target Q heads; online: the online encoder."""
    contrastive_target: Literal["ema", "online"] = "ema"
    """Encoder and projector of BYOL's targets. ema: copies of their own, at byol_momentum; online: the online ones."""
    byol_momentum: float = 0.996
    """EMA momentum of BYOL's target encoder and projector at a stage's start; rises to 1 at its end."""
    q_regularisation: bool = True
    """DrQ: average Q targets and losses over two random shifts; off uses one shift of each observation."""
    contrastive: bool = True
    """BYOL on the contrastive token beside the critic's loss."""
    contrastive_loss: Literal["cosine", "mse"] = "cosine"
    """cosine: 2 - 2 cos; mse: without normalising."""
    contrastive_weight: float = 1.0
    projector_dim: int = 96
    projector_hidden: int = 384
    projector_ends_in_norm: bool = False
    """Whether the projector has one more batch norm at its end."""
    prediction: bool = False
    """Self-prediction beside the critic's loss: features and action must tell the next features, standardised over the
    batch, and the reward. It needs no further encoder pass."""
    prediction_weight: float = 1.0
    prediction_hidden: int = 256
    """Hidden width of the map from features and action to the prediction."""
    head_updates: int = 0
    """How often actor and critics learn from a batch again, at as many later updates, from the features that it had:
    heads want more updates than the encoder, and theirs cost little."""
    past_actions: int = 0
    """Last actions that actor and critics read beside the features: frames tell a speed only up to what the last
    action has changed of it."""
    shift: int = 4
    """Largest random shift in pixels; 0 turns augmentation off."""
    same_shift: bool = False
    """Shift the next observation as the one before, not by itself: what stands still is then seen at the same place in
    both, and what moves can be predicted."""
    head_layers: int = 3
    """Linear layers in actor and critics."""
    head_width: int = 1024
    head_norm: bool = False
    """LayerNorm before each ReLU of actor and critics."""
    exploration: Literal["white", "pink"] = "white"
    """Noise of a training's actions. white: drawn anew at every step; pink: it also has slow parts, so that actions
    wander and do not cancel out."""
    log_std_min: float = -10.0
    log_std_max: float = 2.0
    init_temperature: float = 0.1
    learn_temperature: bool = True
    target_entropy: float | None = None
    """none: minus the number of actions."""

    def __post_init__(self) -> None:
        at_least(1, self, "batch_size", "n_step", "updates_per_step", "update_every", "actor_every", "target_every")
        at_least(1, self, "projector_dim", "projector_hidden", "prediction_hidden")
        at_least(1, self, "head_width")
        at_least(2, self, "head_layers")
        at_least(0, self, "shift", "past_actions", "head_updates")
        at_most(64, self, "past_actions", "head_updates")
        at_most(1024, self, "n_step", "updates_per_step", "shift")
        at_most(1 << 20, self, "batch_size")
        at_most(1 << 16, self, "projector_dim", "projector_hidden", "prediction_hidden", "head_width")
        at_most(64, self, "head_layers")
        positive(self, "learning_rate", "encoder_lr_scale", "init_temperature")
        for name in ("late_learning_rate", "gradient_clip"):
            if getattr(self, name) is not None:
                positive(self, name)
        share(self, "late_from", "discount", "critic_tau", "byol_momentum", "adam_beta1", "adam_beta2")
        for name in ("weight_decay", "contrastive_weight", "prediction_weight"):
            if getattr(self, name) < 0:
                raise ConfigError(f"agent.{name} cannot be negative")
        if not self.log_std_min < self.log_std_max:
            raise ConfigError(f"agent.log_std_min {self.log_std_min} must be below log_std_max {self.log_std_max}")
        if self.frames_per_update is not None:
            at_least(1, self, "frames_per_update")

    def update_rounds(self, action_repeat: int) -> tuple[int, int]:
        """Steps between two rounds of updates of a task with this action repeat, and updates in a round."""
        if self.frames_per_update is None:
            return self.update_every, self.updates_per_step
        return max(1, self.frames_per_update // action_repeat), max(1, action_repeat // self.frames_per_update)


@dataclass(frozen=True)
class TrainingConfig:
    """The loop around the agent."""

    frames: int = 500_000
    """Simulator steps for each task."""
    seed_steps: int = 1000
    """Steps with random actions before learning starts."""
    episode_frames: int | None = None
    """Frames after which a training episode is cut, as by a time limit: more episodes, so more starts and targets, for
    the same frames. none plays them to the task's own end, as evaluations always are."""
    replay_capacity: int = 100_000
    """Transitions kept per task."""
    replay_on: Literal["auto", "host", "device"] = "auto"
    """Whose memory holds the replay's frames. auto: the GPU's if they fit there, else the machine's."""
    eval_every_frames: int = 10_000
    eval_episodes: int = 10
    final_episodes: int = 10
    """Episodes of a task's last evaluation and of its retests: before and after are told by the same episodes."""
    checkpoint_every_frames: int = 10_000
    log_every_steps: int = 100
    """Steps between two rows of metrics.jsonl."""
    device: str = "auto"
    """auto takes a GPU when there is one; else a torch device such as cpu or cuda:1."""
    precision: Precision = "auto"
    """Compute precision. auto: bf16 where a short probe finds it faster than fp32; config.json of a run
    says which it was."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile for the encoder's passes. auto: on a GPU only (docs/performance.md)."""
    threads: int | None = None
    """CPU threads; none leaves the choice to torch."""
    tensorboard: bool = True
    """Also write TensorBoard files when tensorboard is installed."""
    wandb: bool = False
    """Also log to Weights & Biases (needs the extra `wandb`)."""

    def __post_init__(self) -> None:
        at_least(1, self, "frames", "seed_steps", "replay_capacity", "eval_every_frames", "eval_episodes")
        at_least(1, self, "final_episodes", "checkpoint_every_frames", "log_every_steps")
        if self.episode_frames is not None:
            at_least(1, self, "episode_frames")
        if self.threads is not None:
            at_least(1, self, "threads")
            at_most(1024, self, "threads")


@dataclass(frozen=True)
class StageConfig:
    """One stage of a curriculum."""

    tasks: tuple[str, ...]
    """What is learnt in it; several tasks are learnt together."""
    frames: int
    """Simulator steps for each task."""
    transfer: TransferConfig

    def __post_init__(self) -> None:
        at_least(1, self, "frames")


@dataclass(frozen=True)
class Config:
    """One whole training: what a run folder's config.json holds."""

    tasks: tuple[str, ...] = ()
    """Tasks of the training as it was started; `all_tasks` has the added ones too."""
    together: bool = False
    """Whether these tasks are learnt together, in one stage, and not one after the other."""
    preset: str = "paper"
    """The preset these settings started from."""
    seed: int = 1
    env: EnvConfig = field(default_factory=EnvConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    dreamer: DreamerConfig = field(default_factory=DreamerConfig)
    transfer: TransferConfig = field(default_factory=TransferConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    added: tuple[StageConfig, ...] = ()
    """Stages that were added to the finished run, each with its own budget and way of transfer."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**31:
            raise ConfigError(f"seed {self.seed} must be between 0 and {2**31 - 1}")
        names = self.all_tasks
        if len(names) > MOST_TASKS:
            raise ConfigError(f"{len(names)} tasks are more than one run can learn: name at most {MOST_TASKS}")
        repeated = sorted(task for task, times in Counter(names).items() if times > 1)
        if repeated:
            raise ConfigError(f"task {repeated[0]!r} is named twice: a run learns each task once")
        if self.together and len(self.tasks) < 2:
            raise ConfigError("together needs two tasks or more")
        if any(len(stage.tasks) != 1 for stage in self.added):
            raise ConfigError("an added stage learns one task")
        shifts = self.agent.shift or self.agent.q_regularisation or self.agent.contrastive
        if self.encoder.kind == "resnet50" and (shifts or self.encoder.normalise_pixels):
            raise ConfigError(
                "encoder.kind resnet50 learns from stored features, which cannot be shifted: it needs agent.shift 0 and"
                " agent.q_regularisation, agent.contrastive and encoder.normalise_pixels off"
            )
        self._check_sources()
        protections = {stage.transfer.protect for stage in self.stages}
        if self.agent.kind == "dreamer" and not protections <= {"none", "freeze"}:
            raise ConfigError(
                f"transfer.protect {min(protections - {'none', 'freeze'})} is not made for agent.kind dreamer:"
                " choose none or freeze"
            )
        if "packnet" in protections and len(protections) > 1:
            raise ConfigError(
                "transfer.protect packnet prunes from the first stage on: choose it for all stages, or none"
            )
        if self.agent.kind == "dreamer" and self.training.precision == "bf16":
            raise ConfigError("agent.kind dreamer computes in fp32: set training.precision fp32")

    def _check_sources(self) -> None:
        """Every later stage starts from an earlier task; what is set for the first is meant for stages to come."""
        earlier: tuple[str, ...] = SOURCES
        for number, stage in enumerate(self.stages):
            allowed = earlier if number else (*SOURCES, *self.all_tasks)
            if stage.transfer.source not in allowed:
                where = f"learnt before {' + '.join(stage.tasks)}" if number else "of this run"
                raise ConfigError(
                    f"transfer.source {reprlib.repr(stage.transfer.source)} is no task {where}:"
                    f" choose one of {', '.join(allowed)}"
                )
            earlier = (*earlier, *stage.tasks)

    @property
    def stages(self) -> tuple[StageConfig, ...]:
        """The whole curriculum."""
        groups = (self.tasks,) if self.together else tuple((task,) for task in self.tasks)
        return (*(StageConfig(group, self.training.frames, self.transfer) for group in groups), *self.added)

    @property
    def all_tasks(self) -> tuple[str, ...]:
        """Every task, in the order in which they are learnt."""
        return tuple(task for stage in self.stages for task in stage.tasks)


# Settings that came later, each with a default that keeps what was before: a run that lacks them is read all the same.
ADDED_LATER = {
    "config.dreamer",
    "config.dreamer.reward_scale",
    "config.agent.kind",
    "config.agent.update_every",
    "config.agent.frames_per_update",
    "config.agent.contrastive_target",
    "config.agent.rewards",
    "config.agent.rate_schedule",
    "config.agent.exploration",
    "config.agent.prediction",
    "config.agent.prediction_weight",
    "config.agent.prediction_hidden",
    "config.agent.head_updates",
    "config.agent.past_actions",
    "config.agent.same_shift",
    "config.training.episode_frames",
    *(
        f"{place}.{name}"
        for place in ("config.transfer", "config.added[].transfer")
        for name in (
            "source",
            "warmup_updates",
            "penalty_weight",
            "packnet_share",
            "train_token",
            "temperature",
            "random_start",
        )
    ),
}
# Settings that are gone with what they were for: a run that has them is read all the same.
REMOVED = {"encoder": ("questions", "stem_convs", "background"), "agent": ("painting_weight",)}
EARLIER_TARGET_ENCODERS = ("byol", "critic")  # both were EMA copies


def to_json(config: Config) -> str:
    """The config as indented JSON; `from_json` reads it back to an equal object."""
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text: str) -> Config:
    """Read `to_json`'s text; a missing, unknown or ill-typed field is a `ConfigError` that names it."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"config is not JSON: {error}") from None
    if isinstance(data, dict):
        _bring_up_to_date(data)
    config = decode(Config, data, "config", ADDED_LATER)
    assert isinstance(config, Config)
    return config


def _bring_up_to_date(data: dict[str, Any]) -> None:
    """Change what earlier versions wrote into what it is called now."""
    for section, names in REMOVED.items():
        for name in names:
            if isinstance(data.get(section), dict):
                data[section].pop(name, None)
    agent = data.get("agent")
    if isinstance(agent, dict) and agent.get("target_encoder") in EARLIER_TARGET_ENCODERS:
        agent["target_encoder"] = "ema"


def differences(old: Any, new: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Fields in which two configs of one type differ, as `{"agent.discount": (0.99, 0.98)}`."""
    found: dict[str, tuple[Any, Any]] = {}
    for f in dataclasses.fields(old):
        a, b = getattr(old, f.name), getattr(new, f.name)
        if dataclasses.is_dataclass(a):
            found |= differences(a, b, f"{prefix}{f.name}.")
        elif a != b:
            found[prefix + f.name] = (a, b)
    return found
