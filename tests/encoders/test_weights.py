"""Weight files: the public ones fit, every other is refused in one line, and none is ever unpickled here."""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_resnets import WIDTH, resnet_tensors, write_weights
from torch import Tensor, nn

from ctrlformer.config import EncoderConfig
from ctrlformer.encoders import weights
from ctrlformer.encoders.weights import CONVERT, load_resnet, with_checked_weights
from ctrlformer.errors import ConfigError

HOWTO = Path(__file__).parents[2] / weights.HOWTO


def config_for(path: Path | None, sha256: str | None = None) -> EncoderConfig:
    return EncoderConfig(
        kind="resnet50",
        weights=None if path is None else str(path),
        weights_sha256=sha256,
        resnet_width=WIDTH,
    )


def refusal(config: EncoderConfig) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(ConfigError) as refused:
        with_checked_weights(config)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_the_networks_tensors_are_the_files(tmp_path: Path) -> None:
    resnet = load_resnet(config_for(write_weights(tmp_path / "resnet.safetensors")))
    expected = resnet_tensors()
    for name, tensor in resnet.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(tensor, expected[name]), name
    assert not any(p.requires_grad for p in resnet.parameters())
    assert not resnet.training


def test_the_older_public_file_lacks_counters_and_fits_as_well(tmp_path: Path) -> None:
    tensors = {name: t for name, t in resnet_tensors().items() if not name.endswith("num_batches_tracked")}
    assert len(tensors) == 267
    save_file(tensors, tmp_path / "old.safetensors")
    load_resnet(config_for(tmp_path / "old.safetensors"))


def test_the_whole_path_and_checksum_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_weights(tmp_path / "resnet.safetensors")
    (tmp_path / "link.safetensors").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    noted = with_checked_weights(config_for(Path("link.safetensors")))
    assert noted.weights == str(path.resolve())
    assert noted.weights_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert with_checked_weights(noted) == noted


def test_encoders_without_weights_stay_as_they_are() -> None:
    assert with_checked_weights(EncoderConfig()) == EncoderConfig()
    with pytest.raises(ConfigError, match=r"is for encoder\.kind resnet50, not cnn"):
        EncoderConfig(kind="cnn", weights="resnet.safetensors")


def test_a_checksum_or_its_beginning_must_fit(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "resnet.safetensors")
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    for given in (checksum, checksum[:8]):
        assert with_checked_weights(config_for(path, given)).weights_sha256 == checksum
    other = "0" * 8 if checksum[:8] != "0" * 8 else "1" * 8
    assert re.search(
        rf"another file than wanted: its SHA-256 is {checksum}, not {other}", refusal(config_for(path, other))
    )
    for nonsense in ("1234567", "XYZ45678", "a" * 65):
        with pytest.raises(ConfigError, match="8 to 64 digits"):
            config_for(path, nonsense)


def test_without_a_file_the_howto_is_named() -> None:
    message = refusal(config_for(None))
    assert "--encoder.weights" in message
    assert CONVERT in message
    assert weights.HOWTO in message
    assert HOWTO.exists()


@pytest.mark.parametrize("name", ["nowhere.safetensors", "folder", "circle"])
def test_a_file_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    assert f"{name} cannot be read" in refusal(config_for(tmp_path / name))


def without(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.pop(name)


def with_tensor(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without("layer3.5.conv2.weight"), "not a ResNet-50: layer3.5.conv2.weight is missing"),
        (without("bn1.running_mean"), "bn1.running_mean is missing"),
        (
            with_tensor("layer3.6.conv1.weight", torch.zeros(1)),
            "'layer3.6.conv1.weight' is unknown",
        ),  # ResNet-101 has it
        (
            with_tensor("conv1.weight", torch.zeros(2, 3, 3, 3)),
            r"conv1.weight has shape (2, 3, 3, 3), not (2, 3, 7, 7)",
        ),
        (with_tensor("bn1.weight", torch.tensor([1.0, torch.nan])), "bn1.weight holds what are not finite numbers"),
        (with_tensor("bn1.bias", torch.tensor([1, 2])), "bn1.bias holds what are not finite numbers"),
    ],
)
def test_what_is_no_resnet_50_is_named(
    spoil: Callable[[dict[str, Tensor]], object], message: str, tmp_path: Path
) -> None:
    tensors = resnet_tensors()
    spoil(tensors)
    save_file(tensors, tmp_path / "spoilt.safetensors")
    assert message in refusal(config_for(tmp_path / "spoilt.safetensors"))


def test_another_width_does_not_fit(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "resnet.safetensors", width=3)
    assert "does not fit" in refusal(config_for(path))
    load_resnet(replace(config_for(path), resnet_width=3))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "resnet.safetensors")
    data = path.read_bytes()
    for spoilt in (data[:-1], data[:100], b"", b"{}", data[8:], (1 << 60).to_bytes(8, "little") + data[8:]):
        path.write_bytes(spoilt)
        assert "resnet.safetensors is damaged or not a safetensors file" in refusal(config_for(path))


# Pickles


class Trap:
    """Pickled, it makes a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_is_never_opened_and_a_foreign_one_warned_of(tmp_path: Path) -> None:
    torch.save({"conv1.weight": Trap(tmp_path / "sprung")}, tmp_path / "resnet50-0676ba61.pth")
    message = refusal(config_for(tmp_path / "resnet50-0676ba61.pth"))
    assert "neither of the public ResNet-50s" in message
    assert "do not open it" in message
    assert "python -c" not in message
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("zipped", [True, False])  # the newer public file, and the older
def test_a_public_pickle_is_converted_by_the_howtos_command(
    zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "resnet50.pth"
    tensors = {name: nn.Parameter(t) if t.is_floating_point() else t for name, t in resnet_tensors().items()}
    torch.save(tensors, path, _use_new_zipfile_serialization=zipped)
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(weights, "PUBLIC", (checksum[:8],))  # as if this were the public file
    message = refusal(config_for(path))
    (command,) = re.findall(r"convert it once by (.*) \(see", message)
    assert CONVERT in HOWTO.read_text()
    assert CONVERT in command
    words = [sys.executable, *shlex.split(command)[1:]]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    converted = load_file(tmp_path / "resnet50.safetensors")
    assert converted.keys() == tensors.keys()
    load_resnet(config_for(tmp_path / "resnet50.safetensors"))
