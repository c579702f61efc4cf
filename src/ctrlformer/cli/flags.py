"""Settings that are on or off, on the command line: `--agent.contrastive off`.

tyro's own spellings, `--agent.contrastive` and `--agent.no-contrastive`, are taken as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import zip_longest

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from ctrlformer.config import Config

ON, OFF = "on", "off"
VALUES = {ON, OFF, "true", "false", "yes", "no", "1", "0"}  # of a switch; tyro refuses all but the first two

switches = ConstructorRegistry()
"""Inside `with switches:`, tyro reads and shows a switch as on or off."""


@switches.primitive_rule
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
