"""Safe file operations: everything that must survive a crash, a full disk or a hostile folder goes through here.

Two promises. What is written appears whole or not at all, and is on the disk when the call returns. What is
read is an ordinary file of a bounded size: never a link that leads elsewhere, never a pipe that blocks.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

JSON: TypeAlias = Any  # what json.loads returns: whoever reads it checks what it uses

TEMPORARY = ".tmp-"  # prefix of unfinished files and folders; a crash may leave one, and nobody ever reads it

DEEPEST = 64  # lists and objects inside each other: far more than any file here has

READ = os.O_RDONLY
WRITE = os.O_WRONLY | os.O_CREAT  # keeps the content of a file that exists


def open_regular(path: Path, flags: int) -> int:
    """A file descriptor of an ordinary file; a link, pipe, device or folder is an `OSError`.

    So is a file to be written that has a second name: that one may lie in another place.
    """
    # Without O_NONBLOCK, opening a pipe that someone left in place of a file would wait for ever.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    found = os.fstat(descriptor)
    trouble = None
    if not stat.S_ISREG(found.st_mode):
        trouble = "not an ordinary file"
    elif flags & os.O_WRONLY and found.st_nlink > 1:
        trouble = "it has another name elsewhere (a hard link); put a copy of its own in its place"
    if trouble:
        os.close(descriptor)
        raise OSError(errno.EINVAL, trouble, str(path))
    return descriptor


def read_bounded(path: Path, limit: int) -> bytes:
    """The bytes of an ordinary file of at most `limit` bytes; a longer one is an `OSError`."""
    with open(open_regular(path, READ), "rb") as file:
        return file.read(_checked_size(path, file.fileno(), limit))


def lines_bounded(path: Path, limit: int) -> Iterator[bytes]:
    """The lines of such a file one after the other, as many as it has now: somebody may be writing more."""
    with open(open_regular(path, READ), "rb") as file:
        left = _checked_size(path, file.fileno(), limit)
        while line := file.readline(left):
            left -= len(line)
            yield line


def _checked_size(path: Path, descriptor: int, limit: int) -> int:
    size = os.fstat(descriptor).st_size
    if size > limit:
        raise OSError(errno.EFBIG, f"{size} bytes, more than the {limit} that such a file can need", str(path))
    return size


def fsync_folder(folder: Path) -> None:
    """Make names that were created, renamed or removed in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durable(path: Path, data: bytes) -> None:
    """Write a new file and wait until it is on the disk. Not atomic: for files inside an unfinished folder."""
    with open(open_regular(path, WRITE | os.O_EXCL), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: after a crash at any moment it holds all of the old or all of the new."""
    with replacing(path) as temporary:
        write_durable(temporary, data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, to be written inside the `with`: at its end it takes `path`'s place.

    What lies there already, of a crash or an untrusted folder, is removed and never written through.
    """
    temporary = path.with_name(TEMPORARY + path.name)
    try:
        remove_tree(temporary)
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_tree(temporary)
        raise
    fsync_folder(path.parent)


def remove_folder(folder: Path) -> None:
    """Delete a folder so that no crash leaves half of it under its own name."""
    doomed = folder.with_name(TEMPORARY + folder.name)
    remove_tree(doomed)
    os.replace(folder, doomed)
    fsync_folder(folder.parent)
    remove_tree(doomed)


def remove_tree(path: Path) -> None:
    """Delete a file, a folder with all it holds, or a link (never what it leads to); nothing there is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def to_json(value: JSON) -> bytes:
    """Indented JSON with a final newline; NaN and infinities, which are not JSON, raise `ValueError`."""
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def parse_json(data: bytes) -> JSON:
    """The value of JSON text; anything wrong with it, its encoding or its depth is a `ValueError`."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    # What was just shallow enough to be read might still be too deep to be shown or written.
    if data.count(b"[") + data.count(b"{") > DEEPEST and _is_deep(value):
        raise ValueError("nested too deeply")
    return value


def _is_deep(value: JSON) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        inside = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [one for part in inside for one in part]
    return bool(level)


def reason(error: OSError) -> str:
    """What went wrong, in words for an error message."""
    return error.strerror or str(error)
