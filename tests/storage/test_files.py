"""Safe file operations: old or new but never half, and nothing but ordinary files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctrlformer.storage.files import (
    READ,
    TEMPORARY,
    WRITE,
    open_regular,
    parse_json,
    read_bounded,
    remove_folder,
    remove_tree,
    to_json,
    write_atomic,
)


def test_write_atomic_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"old", b"new and longer", b""):
        write_atomic(path, data)
        assert path.read_bytes() == data
        assert os.listdir(tmp_path) == ["file"]


def test_write_atomic_syncs_the_file_before_the_rename_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        events.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def noted_replace(source: Path, target: Path) -> None:
        events.append(("replace", target.name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write_atomic(tmp_path / "file", b"data")
    assert events == [("fsync", f"{TEMPORARY}file"), ("replace", "file"), ("fsync", tmp_path.name)]


@pytest.mark.parametrize("operation", ["open", "fsync", "replace"])
def test_a_failed_write_atomic_keeps_the_old_file_and_tidies_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, operation, no_space)
        with pytest.raises(OSError, match="No space left"):
            write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def no_space(*args: object) -> int:
    raise OSError(28, "No space left on device")


def test_only_ordinary_files_are_opened(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe"):
        for flags in (READ, WRITE | os.O_TRUNC):
            with pytest.raises(OSError, match=name):
                open_regular(tmp_path / name, flags)
    with pytest.raises(OSError, match="pipe"):
        read_bounded(tmp_path / "pipe", 100)  # without waiting for someone to write into it
    assert target.read_bytes() == b"precious"


def test_descriptors_are_not_leaked_when_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(OSError, match="not an ordinary file"):
            open_regular(tmp_path / "pipe", READ)
    assert len(os.listdir("/proc/self/fd")) == before


def test_read_bounded_refuses_what_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(OSError, match="5 bytes, more than the 4"):
        read_bounded(path, 4)
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # sparse: takes no disk, but would take all memory
    with pytest.raises(OSError, match="more than"):
        read_bounded(path, 1 << 20)


def test_remove_folder_never_leaves_half_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_bytes(b"data")
    with monkeypatch.context() as patch:
        patch.setattr("ctrlformer.storage.files.shutil.rmtree", no_space)
        with pytest.raises(OSError, match="No space"):
            remove_folder(folder)
    assert os.listdir(tmp_path) == [f"{TEMPORARY}folder"]
    folder.mkdir()
    remove_folder(folder)  # also takes away what the failed one left
    assert os.listdir(tmp_path) == []


def test_remove_tree_never_follows_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"data")
    (tmp_path / "link").symlink_to(outside)
    remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "absent")
    assert not (tmp_path / "link").exists()
    assert (outside / "precious").exists()


def test_json_refuses_what_json_cannot_hold() -> None:
    assert parse_json(to_json({"a": [1, 2.5, None, "ü"]})) == {"a": [1, 2.5, None, "ü"]}
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            to_json({"a": value})
    for text in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 5000):
        with pytest.raises(ValueError, match=r"."):
            parse_json(text)


def test_nothing_is_written_through_a_second_name(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    os.link(precious, tmp_path / "log")
    with pytest.raises(OSError, match="another name elsewhere"):
        open_regular(tmp_path / "log", WRITE)
    os.close(open_regular(tmp_path / "log", READ))
    os.link(precious, tmp_path / f"{TEMPORARY}file")  # where write_atomic writes first
    write_atomic(tmp_path / "file", b"new")
    assert precious.read_bytes() == b"precious"
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_folder_in_place_of_a_temporary_file_goes(tmp_path: Path) -> None:
    (tmp_path / f"{TEMPORARY}file" / "inside").mkdir(parents=True)
    write_atomic(tmp_path / "file", b"new")
    assert os.listdir(tmp_path) == ["file"]


def test_json_that_could_not_be_shown_again_is_refused() -> None:
    assert parse_json(b"[" * 50 + b"]" * 50)
    assert len(parse_json(b"[" + b"[],{}," * 1000 + b"[]]")) == 2001
    for depth in (70, 900, 100_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(b'{"a":' * depth + b"1" + b"}" * depth)
