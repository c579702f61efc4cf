"""What makes runs comparable. Runs of one method differ in seed, tasks and budget only: over them a mean is one over
seeds. `report` and `scores` group runs by it, from config.json alone, of whatever version it is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ctrlformer.config import Config, differences, from_json
from ctrlformer.config.presets import PRESETS
from ctrlformer.errors import ConfigError
from ctrlformer.storage.files import JSON, read_bounded
from ctrlformer.storage.run_folder import CONFIG, SMALL_FILE_BYTES, read_object

TRANSFER = "transfer."
SECTIONS = ("env.", "encoder.", "agent.", "dreamer.", TRANSFER)
# Of the training's settings; the others say where, how long and how closely watched.
TRAINING = ("training.seed_steps", "training.episode_frames", "training.replay_capacity")
PATHS = ("encoder.weights",)  # encoder.weights_sha256 says what is in the file, wherever it lies
UNKNOWN, MISSING = "unknown", "missing"
MOST_NAMED = 8  # settings in one heading
LONGEST = 200  # characters of a name or a value; a digest has 64


@dataclass(frozen=True)
class Method:
    """A preset and what is changed in it, as far as it decides what is learnt."""

    preset: str
    values: Mapping[str, str]
    """Every such setting by its dotted name, as text."""
    changed: tuple[str, ...]
    """Names of those other than the preset's."""
    version: str = ""
    """Digest of the settings where they are of another version; empty where they are understood."""

    @property
    def name(self) -> str:
        """Two methods of one name are the same."""
        return self._named(self.changed)

    def differing(self, other: Method) -> list[str]:
        """Names of the settings in which two methods differ."""
        names = dict.fromkeys([*self.values, *other.values])
        return [name for name in names if self.values.get(name, MISSING) != other.values.get(name, MISSING)]

    def distinguished_from(self, others: Sequence[Method]) -> str:
        """What distinguishes it among others: the differing settings alone, and the preset if that differs too."""
        names = sorted({name for other in others for name in self.differing(other) if self._comparable(name, other)})
        if any(self.preset != other.preset for other in others):
            return self._named(name for name in self.changed if name in names)
        version = self._version if any(self.version != other.version for other in others) else []
        return ", ".join(filter(None, [listed(f"{name} {self.values.get(name, MISSING)}" for name in names), *version]))

    def _named(self, changed: Iterable[str]) -> str:
        return ", ".join([self.preset, *(f"{name} {self.values[name]}" for name in changed), *self._version])

    def _comparable(self, name: str, other: Method) -> bool:
        """How it transfers is no difference from a method that has one stage and does not: budgets tell that."""
        return not name.startswith(TRANSFER) or (name in self.values and name in other.values)

    @property
    def _version(self) -> list[str]:
        return [f"{CONFIG} of another version ({self.version})"] if self.version else []


@dataclass(frozen=True)
class RunSettings:
    """config.json of a run."""

    raw: Mapping[str, JSON] | None
    """As it is; none without the file."""
    config: Config | None
    """The same understood; none if it is of another version."""

    @classmethod
    def read(cls, folder: Path) -> RunSettings:
        """A file that is no JSON object is a `RunError`."""
        raw = read_object(folder / CONFIG)
        return cls(raw, None if raw is None else _understood(folder / CONFIG))

    @property
    def preset(self) -> str:
        return _text((self.raw or {}).get("preset", UNKNOWN))

    @cached_property
    def method(self) -> Method:
        return self._method(SECTIONS)

    @cached_property
    def plain_method(self) -> Method:
        """The method but for how it transfers, of which a first stage knows nothing."""
        return self._method(tuple(section for section in SECTIONS if section != TRANSFER))

    @cached_property
    def group_method(self) -> Method:
        """The method as far as the run's own stages go."""
        return self.plain_method if self.config is not None and len(self.config.stages) < 2 else self.method

    @cached_property
    def changes(self) -> dict[str, tuple[JSON, JSON]]:
        """Settings other than the preset's, with the preset's value first; empty if they are of another version."""
        if self.config is None:
            return {}
        base = self._base
        found = {
            name: values
            for name, values in differences(base, self.config).items()
            if name not in ("tasks", "seed", "added", "preset") and not name.startswith(TRANSFER)
        }
        before = _flat(dataclasses.asdict(base.transfer), TRANSFER)
        now = _stage_transfers(self.config)
        return found | {name: (before[name], now[name]) for name in now if now[name] != before[name]}

    @property
    def budget(self) -> tuple[int, ...]:
        """Frames of a task in every stage; of another version those of the first alone, if it says so."""
        if self.config is not None:
            return tuple(stage.frames for stage in self.config.stages)
        training = (self.raw or {}).get("training")
        frames = training.get("frames") if isinstance(training, dict) else None
        return (frames,) if type(frames) is int else ()

    @property
    def _base(self) -> Config:
        return PRESETS.get(self.preset, Config())

    def _method(self, sections: tuple[str, ...]) -> Method:
        def decides(name: str) -> bool:
            return name in TRAINING or (name.startswith(sections) and name not in PATHS)

        if self.config is None:
            return self._of_another_version(decides, TRANSFER in sections)
        values = _flat(dataclasses.asdict(self.config)) | _stage_transfers(self.config)
        texts = {name: _text(value) for name, value in values.items() if decides(name)}
        return Method(self.preset, texts, tuple(name for name in self.changes if decides(name)))

    def _of_another_version(self, decides: Callable[[str], bool], transfers: bool) -> Method:
        """What is not understood may matter: the digest tells apart whatever differs in more than seed and tasks."""
        if self.raw is None:
            return Method(UNKNOWN, {}, ())
        raw = {name: value for name, value in self.raw.items() if name not in ("seed", "tasks", "together", "training")}
        if not transfers:
            raw = {name: value for name, value in raw.items() if name not in ("transfer", "added")}
        texts = {_text(name): _text(value) for name, value in _flat(self.raw).items() if decides(name)}
        usual = {name: _text(value) for name, value in _flat(dataclasses.asdict(self._base)).items()}
        changed = tuple(name for name, value in texts.items() if value != usual.get(name, value))
        digest = hashlib.sha256(json.dumps([raw, texts], sort_keys=True).encode()).hexdigest()
        return Method(self.preset, texts, changed, digest[:6])


def listed(texts: Iterable[str]) -> str:
    """The first few of them, and how many more there are.

    >>> listed(["agent.discount 0.9"]), listed("abcdefghij")
    ('agent.discount 0.9', 'a, b, c, d, e, f, g, h and 2 more')
    """
    every = list(texts)
    more = f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else ""
    return ", ".join(every[:MOST_NAMED]) + more


def _stage_transfers(config: Config) -> dict[str, JSON]:
    """How later stages take up their tasks: one value where they agree, else one for each stage."""
    each = [_flat(dataclasses.asdict(stage.transfer), TRANSFER) for stage in config.stages[1:]]
    each = each or [_flat(dataclasses.asdict(config.transfer), TRANSFER)]
    values = {name: [one[name] for one in each] for name in each[0]}
    return {name: of[0] if all(value == of[0] for value in of) else tuple(of) for name, of in values.items()}


def _flat(values: Mapping[str, JSON], prefix: str = "") -> dict[str, JSON]:
    """
    >>> _flat({"seed": 1, "agent": {"discount": 0.9}})
    {'seed': 1, 'agent.discount': 0.9}
    """
    found: dict[str, JSON] = {}
    for name, value in values.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def _text(value: JSON) -> str:
    """
    >>> _text(True), _text(0.9), _text(("none", "freeze"))
    ('on', '0.9', 'none then freeze')
    """
    if isinstance(value, tuple):
        return " then ".join(map(_text, value))
    text = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
    return (text if text.isprintable() else ascii(text))[:LONGEST]  # the file may be untrusted


def _understood(path: Path) -> Config | None:
    try:
        return from_json(read_bounded(path, SMALL_FILE_BYTES).decode())
    except (ConfigError, OSError, UnicodeDecodeError):
        return None
