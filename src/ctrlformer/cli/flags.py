"""How values are written on the command line: switches as on or off, whole numbers also as 100k or 1e5.

tyro's own spellings of switches, `--agent.contrastive` and `--agent.no-contrastive`, are taken as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from decimal import Decimal, DecimalException
from itertools import zip_longest

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from ctrlformer.config import Config

ON, OFF = "on", "off"
VALUES = {ON, OFF, "true", "false", "yes", "no", "1", "0"}  # of a switch; tyro refuses all but the first two

THOUSANDS = {"k": 1_000, "m": 1_000_000}
LARGEST = Decimal(1 << 63)

spellings = ConstructorRegistry()
"""Inside `with spellings:`, tyro reads values as this module says."""


def whole_number(text: str) -> int:
    """Read 100000, 100_000, 100k, 0.1M or 1e5.

    >>> whole_number("100k"), whole_number("1e5"), whole_number("-3")
    (100000, 100000, -3)
    """
    scale = THOUSANDS.get(text[-1:].lower(), 1)
    try:
        number = Decimal(text if scale == 1 else text[:-1]) * scale
        whole = number if abs(number) < LARGEST else Decimal("NaN")
        if whole == whole.to_integral_value():
            return int(whole)
    except DecimalException:  # no number, too large, or NaN
        pass
    raise ValueError(f"{text!r} is not a whole number, such as 100000, 100k or 1e5")


@spellings.primitive_rule
def _whole_number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


@spellings.primitive_rule
def _switch(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[bool] | None:
    if info.type is not bool:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{{{ON},{OFF}}}",
        choices=(ON, OFF),
        instance_from_str=lambda words: words[0] == ON,
        is_instance=lambda value: isinstance(value, bool),
        str_from_instance=lambda value: [ON if value else OFF],
    )


def _names() -> set[str]:
    sections = ((section.name, getattr(Config(), section.name)) for section in dataclasses.fields(Config))
    return {
        f"--{name}.{setting.name}".replace("_", "-")
        for name, section in sections
        if dataclasses.is_dataclass(section)
        for setting in dataclasses.fields(section)
        if setting.type == "bool"
    }


SWITCHES = _names()


def spelled_out(arguments: Sequence[str]) -> list[str]:
    """The arguments with every switch followed by on or off.

    >>> spelled_out(["--agent.contrastive", "--agent.no-q-regularisation", "--encoder.feature-tanh", "off"])
    ['--agent.contrastive', 'on', '--agent.q-regularisation', 'off', '--encoder.feature-tanh', 'off']
    """
    words: list[str] = []
    for word, following in zip_longest(arguments, arguments[1:]):
        flag = word.replace("_", "-")
        positive = flag.replace(".no-", ".", 1)
        if flag in SWITCHES and (following or "").lower() not in VALUES:
            words += [flag, ON]
        elif flag not in SWITCHES and positive in SWITCHES:
            words += [positive, OFF]
        else:
            words.append(word)
    return words
