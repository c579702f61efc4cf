"""The append-only files: durable, and no damage goes unseen."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from ctrlformer.errors import CheckpointError
from ctrlformer.replay.segment_log import CHECKSUM, SegmentLog

RECORD, PER_SEGMENT, COUNT = 8, 8, 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """30 records in 4 segments, the last with 6."""
    fill(SegmentLog(tmp_path, RECORD, PER_SEGMENT), 0, COUNT)
    return tmp_path


def record(number: int) -> bytes:
    return random.Random(number).randbytes(RECORD)


def fill(log: SegmentLog, start: int, stop: int) -> None:
    log.cut(start)
    for number in range(start, stop):
        log.append(record(number))
    log.flush()


def read(folder: Path, first: int = 0, stop: int = COUNT) -> list[bytes]:
    return [bytes(data) for data in SegmentLog(folder, RECORD, PER_SEGMENT).read(first, stop)]


def test_every_range_reads_back(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [f"00000{k}.seg" for k in range(4)]
    for first in range(COUNT + 1):
        for stop in range(first, COUNT + 1):
            assert read(folder, first, stop) == [record(n) for n in range(first, stop)]


@pytest.mark.parametrize("count", range(COUNT + 1))
def test_after_a_cut_the_log_goes_on_from_there(folder: Path, count: int) -> None:
    fill(SegmentLog(folder, RECORD, PER_SEGMENT), count, COUNT + 5)
    assert read(folder, 0, COUNT + 5) == [record(n) for n in range(COUNT + 5)]
    sizes = [path.stat().st_size for path in sorted(folder.iterdir())]
    assert sum(sizes) == (COUNT + 5) * (RECORD + CHECKSUM)


def test_whole_segments_before_a_number_are_discarded(folder: Path) -> None:
    log = SegmentLog(folder, RECORD, PER_SEGMENT)
    log.discard_before(15)
    assert read(folder, 8) == [record(n) for n in range(8, COUNT)]
    assert not (folder / "000000.seg").exists()
    log.discard_before(16)
    assert not (folder / "000001.seg").exists()


def test_every_flipped_bit_is_found_and_its_file_named(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=path.name):
                read(folder)
        path.write_bytes(whole)
    assert read(folder)


def test_every_truncation_is_found_and_its_file_named(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises(CheckpointError, match=path.name):
                read(folder)
        path.unlink()
        with pytest.raises(CheckpointError, match=path.name):
            read(folder)
        path.write_bytes(whole)


def test_swapped_segments_are_damage(folder: Path) -> None:
    first, second = folder / "000000.seg", folder / "000001.seg"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"000000\.seg"):
        read(folder)


def test_what_a_crash_left_after_the_flush_is_ignored(folder: Path) -> None:
    with (folder / "000003.seg").open("ab") as file:
        file.write(b"half a record")
    (folder / "000004.seg").write_bytes(b"unsynced")
    assert read(folder) == [record(n) for n in range(COUNT)]
    fill(SegmentLog(folder, RECORD, PER_SEGMENT), COUNT, 40)
    assert read(folder, 0, 40) == [record(n) for n in range(40)]


def test_flush_waits_for_every_file_and_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name))
    log = SegmentLog(tmp_path, RECORD, PER_SEGMENT)
    fill(log, 0, 20)
    assert synced == ["000000.seg", "000001.seg", "000002.seg", tmp_path.name]
    synced.clear()
    log.append(record(20))
    log.flush()
    assert synced == ["000002.seg", tmp_path.name]


def test_links_and_pipes_are_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "precious"
    shutil.copy(folder / "000003.seg", outside)
    content = outside.read_bytes()
    (folder / "000003.seg").unlink()
    (folder / "000003.seg").symlink_to(outside)
    with pytest.raises(CheckpointError, match=r"000003\.seg"):
        read(folder)
    SegmentLog(folder, RECORD, PER_SEGMENT).cut(0)  # removes the link, not what it leads to
    assert outside.read_bytes() == content
    os.mkfifo(folder / "000000.seg")
    with pytest.raises(CheckpointError, match="not an ordinary file"):
        read(folder)
