"""Append-only files of equally long records: what the replay keeps on disk.

`000000.seg` holds the first records, `000001.seg` the next, and so on. A checkpoint only waits for the disk and
notes how many records there are; going back to it means dropping the records after that number.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from ctrlformer.errors import CheckpointError, RunError
from ctrlformer.storage.files import READ, WRITE, fsync_folder, open_regular, reason

BUFFER = 1 << 20  # bytes gathered before a write
CHECKSUM = 4  # bytes after every record


class SegmentLog:
    """Numbered records in a folder of segments, each record with its checksum."""

    def __init__(self, folder: Path, record_bytes: int, per_segment: int) -> None:
        self._folder, self._per_segment = folder, per_segment
        self._stride = record_bytes + CHECKSUM
        self._count = 0  # records so far
        self._pending = bytearray()  # the newest records, not yet written: never of two segments
        self._unsynced: set[int] = set()  # segments written since the last flush

    def append(self, record: bytes) -> None:
        """Take a record; it reaches the disk at the latest with `flush`."""
        # Room is made first: when the disk is full, the record is refused and nothing before it is lost.
        if len(self._pending) >= BUFFER or self._count % self._per_segment == 0:
            self._write()
        self._pending += record
        self._pending += _checksum(record, self._count)
        self._count += 1

    def _write(self) -> None:
        if not self._pending:
            return
        segment, before = divmod(self._count - 1, self._per_segment)
        path = self._path(segment)
        try:
            with open(open_regular(path, WRITE), "wb") as file:
                # Written at its own place, so that a second try after an error repeats no byte.
                file.seek((before + 1) * self._stride - len(self._pending))
                file.write(self._pending)
        except OSError as error:
            raise _cannot_write(path, error) from error
        self._unsynced.add(segment)
        self._pending.clear()

    def flush(self) -> None:
        """Everything appended is on the disk when this returns."""
        self._write()
        for segment in sorted(self._unsynced):
            try:
                with open(open_regular(self._path(segment), WRITE), "wb") as file:
                    os.fsync(file.fileno())
            except OSError as error:
                raise _cannot_write(self._path(segment), error) from error
        try:
            fsync_folder(self._folder)
        except OSError as error:
            raise _cannot_write(self._folder, error) from error
        self._unsynced.clear()

    def discard_before(self, first: int) -> None:
        """Delete the segments that hold only records before number `first`."""
        self._remove([segment for segment in self._segments() if (segment + 1) * self._per_segment <= first])

    def cut(self, count: int) -> None:
        """Drop every record from number `count` on, and append from there."""
        last, kept = divmod(count, self._per_segment)
        self._remove([segment for segment in self._segments() if segment + (kept == 0) > last])
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if kept:
                with open(open_regular(self._path(last), WRITE), "wb") as file:
                    file.truncate(kept * self._stride)
        except OSError as error:
            raise _cannot_write(self._folder, error) from error
        self._count = count

    def _remove(self, segments: list[int]) -> None:
        for segment in segments:
            try:
                self._path(segment).unlink()
            except OSError as error:
                raise _cannot_write(self._path(segment), error) from error

    def read(self, first: int, stop: int) -> Iterator[memoryview]:
        """Records number `first` to `stop - 1`, each checked; a damaged file is a `CheckpointError` that names it."""
        for segment in range(first // self._per_segment, -(-stop // self._per_segment)):
            start = segment * self._per_segment
            low, high = max(first, start), min(stop, start + self._per_segment)
            data = self._read_bytes(segment, low - start, high - low)
            for number in range(low, high):
                entry = data[(number - low) * self._stride : (number - low + 1) * self._stride]
                if _checksum(entry[:-CHECKSUM], number) != entry[-CHECKSUM:]:
                    raise CheckpointError(f"replay file {self._path(segment)} is damaged at record {number - start}")
                yield entry[:-CHECKSUM]

    def _read_bytes(self, segment: int, skip: int, count: int) -> memoryview:
        path, size = self._path(segment), count * self._stride
        try:
            with open(open_regular(path, READ), "rb") as file:
                file.seek(skip * self._stride)
                data = file.read(size)
        except OSError as error:
            raise CheckpointError(f"replay file {path} cannot be read: {reason(error)}") from error
        if len(data) < size:
            raise CheckpointError(f"replay file {path} is damaged: it ends too early")
        return memoryview(data)

    def _segments(self) -> list[int]:
        found = (re.fullmatch(r"(\d{6,18})\.seg", path.name, re.ASCII) for path in self._folder.glob("*.seg"))
        return sorted(int(match[1]) for match in found if match)

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:06d}.seg"


def _checksum(data: bytes | memoryview, number: int) -> bytes:
    """CRC-32 that starts from the record's number, so that a record in another's place is damage as well."""
    return zlib.crc32(data, number & 0xFFFFFFFF).to_bytes(CHECKSUM, "little")


def _cannot_write(path: Path, error: OSError) -> RunError:
    return RunError(f"cannot write {path}: {reason(error)}; the last checkpoint is intact, fix this and resume")
