"""From JSON to dataclasses: exactly what the annotations say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from ctrlformer.config.decode import decode
from ctrlformer.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    number: float
    name: str | None


@dataclass(frozen=True)
class Outer:
    inner: list[Inner]
    counts: dict[str, int]
    kind: Literal["a", "b"]
    anything: Any = field(default=None)


SOUND: dict[str, Any] = {"inner": [{"number": 1, "name": None}], "counts": {"x": 2}, "kind": "a", "anything": [[]]}


def test_sound_data_is_decoded() -> None:
    assert decode(Outer, SOUND, "it") == Outer([Inner(1.0, None)], {"x": 2}, "a", [[]])
    short = {name: value for name, value in SOUND.items() if name != "anything"}
    assert decode(Outer, short, "it", {"it.anything"}).anything is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"inner": {}}, "it.inner: expected a list"),
        ({"inner": [1]}, r"it.inner\[0\]: expected an object"),
        ({"inner": [{"number": True, "name": None}]}, r"it.inner\[0\].number: expected float, found True"),
        ({"inner": [{"number": float("nan"), "name": None}]}, "not a finite number"),
        ({"inner": [{"number": 10**400, "name": None}]}, "too large a number"),
        ({"counts": {"x": 2**60}}, "it.counts.x: 1152921504606846976 is too large"),
        ({"counts": [1]}, "it.counts: expected an object"),
        ({"kind": ["a"]}, "is not one of a, b"),
        ({"more": 1}, r"unknown fields \['more'\]"),
    ],
)
def test_anything_else_is_named(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        decode(Outer, SOUND | change, "it")


def test_messages_are_short_whatever_was_found() -> None:
    with pytest.raises(ConfigError) as caught:
        decode(Outer, SOUND | {"kind": "x" * 10**6, "x" * 10**6: 1}, "it")
    assert len(str(caught.value)) < 500
