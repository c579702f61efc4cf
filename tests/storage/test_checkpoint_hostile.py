"""Untrusted checkpoints: nothing in them is run, believed or followed."""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ctrlformer.errors import CheckpointError
from ctrlformer.storage.checkpoint import FORMAT, load, save
from ctrlformer.storage.files import to_json


def forge(folder: Path, contents: dict[str, bytes], **changes: Any) -> None:
    """A checkpoint whose manifest and sums are right, however hostile its files."""
    path = folder / "1"
    path.mkdir(parents=True)
    entries = {}
    for name, data in contents.items():
        entries[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        target = path / name
        if target.parent == path:
            target.write_bytes(data)
    (path / "manifest.json").write_bytes(to_json({"format": FORMAT, "step": 1, "files": entries, **changes}))


def tensor_file(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (BOMB_MARK,))


BOMB_MARK = str(Path(tempfile.gettempdir()) / f"ctrlformer-bomb-{os.getpid()}")

HOSTILE: dict[str, dict[str, bytes]] = {
    "pickle": {"agent.safetensors": pickle.dumps(Bomb())},
    "pickle as json": {"trainer.json": pickle.dumps(Bomb())},
    "parent": {"../trainer.json": b"{}"},
    "absolute": {"/etc/hostname": b"{}"},
    "deep name": {"a/b.json": b"{}"},
    "python file": {"agent.py": b"raise SystemExit"},
    "pickle file": {"agent.pt": pickle.dumps(Bomb())},
    "header bomb": {"agent.safetensors": tensor_file(b"{}", length=2**63)},
    "long header": {"agent.safetensors": tensor_file(b" " * (5 << 20))},
    "huge shape": {
        "agent.safetensors": tensor_file(
            b'{"a":{"dtype":"F32","shape":[9999999,9999999],"data_offsets":[0,4]}}', b"0000"
        )
    },
    "overflowing shape": {
        "agent.safetensors": tensor_file(
            b'{"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]}}',
        )
    },
    "huge empty": {
        "agent.safetensors": tensor_file(b'{"a":{"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]}}')
    },
    "unknown type": {
        "agent.safetensors": tensor_file(b'{"a":{"dtype":"OBJ","shape":[1],"data_offsets":[0,4]}}', b"0000")
    },
    "out of range": {
        "agent.safetensors": tensor_file(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', b"0000")
    },
    "empty": {"agent.safetensors": b""},
    "deep json": {"trainer.json": b"[" * 100_000},
    "long number": {"trainer.json": b"9" * 100_000},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused_and_not_run(tmp_path: Path, kind: str) -> None:
    forge(tmp_path / "run" / "checkpoints", HOSTILE[kind])
    warnings: list[str] = []
    with pytest.raises(CheckpointError):
        load(tmp_path / "run" / "checkpoints", warn=warnings.append)
    assert len(warnings) == 1
    assert "\n" not in warnings[0]
    assert len(warnings[0]) < 1000
    assert not Path(BOMB_MARK).exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"format": None},
        {"format": "1"},
        {"step": 2},
        {"files": []},
        {"files": {"a.json": 1}},
        {"files": {"a.json": {"bytes": -1, "sha256": ""}}},
        {"files": {"a.json": {"bytes": 1 << 60, "sha256": ""}}},
        {"extra": 1},
    ],
)
def test_hostile_manifests_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    forge(tmp_path, {}, **changes)
    with pytest.warns(UserWarning, match="checkpoint"), pytest.raises(CheckpointError):
        load(tmp_path)


def test_a_manifest_with_an_infinity_is_refused(tmp_path: Path) -> None:
    forge(tmp_path, {}, files={"a.json": {"bytes": 77, "sha256": ""}})
    (manifest,) = tmp_path.glob("*/manifest.json")
    manifest.write_text(manifest.read_text().replace("77", "1e999"))  # which is what JSON readers take for infinity
    with pytest.warns(UserWarning, match="checkpoint"), pytest.raises(CheckpointError):
        load(tmp_path)


def test_another_format_names_itself(tmp_path: Path) -> None:
    forge(tmp_path, {}, format=FORMAT + 1, new_field=[1])
    with (
        pytest.warns(UserWarning, match=f"has format {FORMAT + 1}: use the version that wrote it"),
        pytest.raises(CheckpointError),
    ):
        load(tmp_path)


def test_links_and_pipes_are_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_bytes(b'"secret"')
    folder = tmp_path / "checkpoints"
    forge(folder, {"trainer.json": secret.read_bytes()})
    (folder / "1" / "trainer.json").unlink()
    (folder / "1" / "trainer.json").symlink_to(secret)
    (folder / "2").symlink_to(folder / "1")
    warnings: list[str] = []
    with pytest.raises(CheckpointError):
        load(folder, warn=warnings.append)
    assert "link" in warnings[0]
    assert "trainer.json" in warnings[1]
    (folder / "1" / "trainer.json").unlink()
    os.mkfifo(folder / "1" / "trainer.json")
    with pytest.raises(CheckpointError):
        load(folder, warn=warnings.append)
    assert "not an ordinary file" in warnings[-1]
    save(folder, 3, {}, {"trainer": "sound"})  # a save removes the links, and nothing behind them
    assert secret.exists()
    assert load(folder).state == {"trainer": "sound"}


def test_foreign_names_are_ignored(tmp_path: Path) -> None:
    for name in ("readme", "-1", "01", "1.0", "1e3", "٣", "9" * 30, ".tmp-5"):
        (tmp_path / name).mkdir()
    save(tmp_path, 1, {}, {"trainer": "sound"})
    assert load(tmp_path, warn=pytest.fail).state == {"trainer": "sound"}
    assert (tmp_path / "readme").exists()
