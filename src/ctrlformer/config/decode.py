"""From JSON to dataclasses, strictly: what comes from a file is exactly what the annotations say, or is refused.

Standard library only, as `schema.py`.
"""

from __future__ import annotations

import dataclasses
import re
import reprlib
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, Literal

from ctrlformer.errors import ConfigError

LARGEST = 1 << 53  # whole numbers beyond are no longer exact as floats, and nothing here counts so far


def decode(kind: Any, data: Any, path: str, optional: Collection[str] = ()) -> Any:
    """Check `data` against the annotation `kind`; what does not fit is a `ConfigError` that names its field.

    `path` is the name of the whole; `optional` has the paths of fields that may be missing, for their defaults; the
    items of a list are all written `[]` there.

    >>> decode(dict[str, int], {"a": 1}, "counts")
    {'a': 1}
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return data
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, data, path, optional)
    if origin is Literal:
        if isinstance(data, str) and data in arguments:
            return data
        raise ConfigError(f"{path}: {reprlib.repr(data)} is not one of {', '.join(arguments)}")
    if origin in (typing.Union, types.UnionType):
        (kind,) = (one for one in arguments if one is not type(None))
        return None if data is None else decode(kind, data, path, optional)
    if origin in (tuple, list):
        if not isinstance(data, list):
            raise ConfigError(f"{path}: expected a list, found {reprlib.repr(data)}")
        return origin(decode(arguments[0], item, f"{path}[{i}]", optional) for i, item in enumerate(data))
    if origin is dict:
        if not isinstance(data, Mapping):
            raise ConfigError(f"{path}: expected an object, found {reprlib.repr(data)}")
        return {name: decode(arguments[1], item, f"{path}.{name[:80]}", optional) for name, item in data.items()}
    return _decode_plain(kind, data, path)


def _decode_plain(kind: Any, data: Any, path: str) -> Any:
    if type(data) is not kind and not (kind is float and type(data) is int):
        raise ConfigError(f"{path}: expected {kind.__name__}, found {reprlib.repr(data)}")
    if isinstance(data, int) and abs(data) > LARGEST:
        raise ConfigError(f"{path}: {reprlib.repr(data)} is too large a number")
    if isinstance(data, float) and not abs(data) < float("inf"):
        raise ConfigError(f"{path}: {data} is not a finite number")
    return kind(data)


def _decode_dataclass(kind: Any, data: Any, path: str, optional: Collection[str]) -> Any:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path}: expected an object, found {reprlib.repr(data)}")
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(data) - set(hints))
    anywhere = re.sub(r"\[\d+\]", "[]", path)
    missing = sorted(name for name in set(hints) - set(data) if f"{anywhere}.{name}" not in optional)
    if unknown or missing:
        fields = f"unknown fields {reprlib.repr(unknown)}, missing fields {reprlib.repr(missing)}"
        raise ConfigError(f"{path}: {fields}; made by another version?")
    return kind(
        **{name: decode(hint, data[name], f"{path}.{name}", optional) for name, hint in hints.items() if name in data}
    )
