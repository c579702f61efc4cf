"""The frozen ResNet's weights, from a file that the user has: read whole, checked, and never unpickled."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from ctrlformer.config import EncoderConfig
from ctrlformer.encoders.resnet import ResNet, empty_resnet
from ctrlformer.errors import CheckpointError, ConfigError
from ctrlformer.storage.checkpoint import unpack
from ctrlformer.storage.files import read_bounded, reason

HOWTO = "docs/howto-resnet.md"
PUBLIC = ("0676ba61", "19c8e357")  # how the SHA-256 of the two public files begins, as their names say
PICKLED = (".pth", ".pt")
FILE_BYTES = 1 << 29  # five times what ResNet-50 takes
CLASSIFIER = "fc."
COUNTER = ".num_batches_tracked"  # not in every public file, and of no use to frozen statistics
CONVERT = (
    "python -c 'import sys, torch; from safetensors.torch import save_file;"
    " save_file(dict(torch.load(sys.argv[1], weights_only=True)), sys.argv[2])'"
)


class _File(NamedTuple):
    path: Path
    data: bytes
    sha256: str


def load_resnet(config: EncoderConfig) -> ResNet:
    """The network with the weights of the config's file; anything wrong with that is a `ConfigError`."""
    return _read(config)[1]


def with_checked_weights(config: EncoderConfig) -> EncoderConfig:
    """The config with the whole path and checksum of its weights file, which has been found sound.

    An encoder that needs no such file stays as it is."""
    if config.kind != "resnet50":
        return config
    file, _ = _read(config)
    return dataclasses.replace(config, weights=str(file.path), weights_sha256=file.sha256)


def _read(config: EncoderConfig) -> tuple[_File, ResNet]:
    file = _open(config)
    try:
        tensors = unpack(file.path, file.data)
    except CheckpointError:
        raise ConfigError(
            f"encoder.weights {file.path} is damaged or not a safetensors file: make it as {HOWTO} says"
        ) from None
    resnet = empty_resnet(config.resnet_width)
    resnet.load_state_dict(_fitting(file.path, tensors, resnet.state_dict()), assign=True)
    return file, resnet


def _open(config: EncoderConfig) -> _File:
    if config.weights is None:
        raise ConfigError(
            "encoder.kind resnet50 needs ImageNet weights, --encoder.weights FILE.safetensors: check the public"
            f" FILE.pth as {HOWTO} says, then convert it once by {CONVERT} FILE.pth FILE.safetensors"
        )
    path = Path(config.weights)
    try:
        path = path.expanduser().resolve(strict=True)  # the user's own choice, so a link is followed, once
        data = read_bounded(path, FILE_BYTES)
    except (OSError, RuntimeError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else f"no such path ({error})"
        raise ConfigError(
            f"encoder.weights {path} cannot be read: {why}; put the file there, or get it as {HOWTO} says"
        ) from None
    checksum = hashlib.sha256(data).hexdigest()
    if path.suffix in PICKLED:
        _refuse_pickle(path, checksum)
    wanted = config.weights_sha256
    if wanted is not None and not checksum.startswith(wanted):
        raise ConfigError(
            f"encoder.weights {path} is another file than wanted: its SHA-256 is {checksum}, not {wanted}"
        )
    return _File(path, data, checksum)


def _refuse_pickle(path: Path, checksum: str) -> NoReturn:
    """Say what to do with a public file, after a look at its checksum, which takes no unpickling."""
    if not checksum.startswith(PUBLIC):
        raise ConfigError(
            f"encoder.weights {path} is a pickle file and neither of the public ResNet-50s, whose SHA-256 begin with"
            f" {' and '.join(PUBLIC)}: do not open it (see {HOWTO})"
        )
    raise ConfigError(
        f"encoder.weights {path} is the public file, but a pickle, which is never opened here: convert it once by"
        f" {CONVERT} {shlex.quote(str(path))} {shlex.quote(path.with_suffix('.safetensors').name)} (see {HOWTO})"
    )


def _fitting(path: Path, found: Mapping[str, Tensor], network: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The file's tensors for the network, without the classifier."""
    needed = {name for name in network if not name.endswith(COUNTER)}
    missing = sorted(needed - set(found))
    unknown = sorted(name for name in set(found) - set(network) if not name.startswith(CLASSIFIER))
    if missing or unknown:
        difference = f"{missing[0]} is missing" if missing else f"{unknown[0][:80]!r} is unknown"
        raise ConfigError(f"encoder.weights {path} is not a ResNet-50: {difference} (see {HOWTO})")
    for name in sorted(needed):
        shape, expected = tuple(found[name].shape), tuple(network[name].shape)
        if shape != expected:
            raise ConfigError(f"encoder.weights {path} does not fit: {name} has shape {shape}, not {expected}")
        if not (found[name].is_floating_point() and bool(found[name].isfinite().all())):
            raise ConfigError(f"encoder.weights {path} is damaged: {name} holds what are not finite numbers")
    counters = {name: torch.zeros((), dtype=torch.int64) for name in network if name.endswith(COUNTER)}
    return {name: found[name].float() for name in needed} | counters
