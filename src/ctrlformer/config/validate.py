"""What settings must be; a value that is not is a `ConfigError` that names its flag."""

from __future__ import annotations

from typing import Any

from ctrlformer.errors import ConfigError


def _where(config: Any) -> str:
    return type(config).__name__.removesuffix("Config").lower()


def at_least(low: float, config: Any, *names: str) -> None:
    for name in names:
        if not getattr(config, name) >= low:
            raise ConfigError(f"{_where(config)}.{name} is {getattr(config, name)}: it must be at least {low}")


def at_most(high: float, config: Any, *names: str) -> None:
    """Far beyond what anyone uses: it is what a file from elsewhere may ask of this machine's memory."""
    for name in names:
        if not getattr(config, name) <= high:
            raise ConfigError(f"{_where(config)}.{name} is {getattr(config, name)}: it must be at most {high}")


def positive(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not 0 < value < float("inf"):
            raise ConfigError(f"{_where(config)}.{name} is {value}: it must be above 0 and finite")


def share(config: Any, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(config, name) <= 1:
            raise ConfigError(f"{_where(config)}.{name} is {getattr(config, name)}: it must be from 0 to 1")
