"""The run folder: everything about one training, readable by people and by the report without torch.

`config.json` says what was asked for, `environment.json` on what machine, `metrics.jsonl` and `evals.jsonl` what
came out, one JSON object a line. A folder without a sound `config.json` is not a run and is left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from ctrlformer.config import Config, from_json
from ctrlformer.config import to_json as config_to_json
from ctrlformer.errors import CheckpointError, ConfigError, NonFiniteError, RunError
from ctrlformer.storage.files import (
    JSON,
    TEMPORARY,
    WRITE,
    fsync_folder,
    lines_bounded,
    open_regular,
    parse_json,
    read_bounded,
    reason,
    to_json,
    write_atomic,
    write_durable,
)
from ctrlformer.storage.provenance import command_line, describe_machine, source_commit

CONFIG, ENVIRONMENT, LOCK = "config.json", "environment.json", "lock"
METRICS, EVALS = "metrics.jsonl", "evals.jsonl"
SMALL_FILE_BYTES = 1 << 20
LOCK_SECONDS = 1.0  # how long a lock is asked for before the run counts as in use
FILE_BYTES = 2 << 30  # no file of a checkpoint is larger
LOG_BYTES = 256 << 20  # a million rows: far more than a training writes

Row: TypeAlias = dict[str, JSON]


class RunFolder:
    """One training's folder. `create` makes a new one, `open` takes an existing one."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self.config = config

    @classmethod
    def create(cls, path: Path, config: Config) -> RunFolder:
        """A new run; the folder must not exist, or be empty."""
        if not path.name.isprintable():
            raise RunError(f"run name {path.name!r} has unprintable characters: choose another")
        try:
            path.mkdir(parents=True, exist_ok=True)
            taken = [name for name in os.listdir(path) if not name.startswith(TEMPORARY)]
            if taken:
                raise RunError(f"{path} already holds {sorted(taken)[0]}: resume that run, or choose another folder")
            write_atomic(path / CONFIG, config_to_json(config).encode())
        except (OSError, ValueError) as error:  # a path can hold a byte that no path may
            why = reason(error) if isinstance(error, OSError) else str(error)
            raise RunError(f"cannot create run folder {path}: {why}") from error
        return cls(path, config)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run."""
        try:
            if not path.is_dir():
                raise RunError(f"no run folder at {path}: check the path")
            text = read_bounded(path / CONFIG, SMALL_FILE_BYTES).decode()
            return cls(path, from_json(text))
        except FileNotFoundError:
            raise RunError(f"{path} is not a run folder: it has no {CONFIG}") from None
        except OSError as error:
            raise RunError(f"cannot read {path / CONFIG}: {reason(error)}") from error
        except (ConfigError, UnicodeDecodeError) as error:
            raise RunError(f"{path / CONFIG} is not a usable config: {error}") from None

    def copy(self, path: Path) -> RunFolder:
        """Copy the run to continue there, without what a finished run no longer needs: its replay and its videos."""
        new = RunFolder.create(path, self.config)
        try:
            for name in (ENVIRONMENT, METRICS, EVALS):
                if (self.path / name).exists():
                    write_atomic(path / name, read_bounded(self.path / name, LOG_BYTES))
            for folder in ("checkpoints", "encoders", "kept"):
                if self._inside(folder).exists():
                    shutil.copytree(self._inside(folder), path / folder, symlinks=True, copy_function=_copy_file)
        except (OSError, shutil.Error) as error:
            with contextlib.suppress(OSError):
                (path / CONFIG).unlink()  # half a copy is not a run
            why = reason(error) if isinstance(error, OSError) else "some files cannot be read"
            raise RunError(f"cannot copy run {self.path} to {path}: {why}") from error
        return new

    def extend(self, config: Config) -> None:
        """Take a config with more stages in place of the old one."""
        path = self.path / CONFIG
        try:
            write_atomic(path, config_to_json(config).encode())
        except OSError as error:
            raise RunError(f"cannot write {path}: {reason(error)}; the run is as it was") from error
        self.config = config

    @property
    def checkpoints(self) -> Path:
        return self._inside("checkpoints")

    @property
    def videos(self) -> Path:
        return self._inside("videos")

    def replay(self, task: str) -> Path:
        """The folder of one task's replay; `gym/CarRacing-v3` becomes `replay/gym+CarRacing-v3`."""
        return self._inside("replay", _file_name(task))

    def stage_encoder(self, stage: int) -> Path:
        """The file of the encoder as it was at the end of a stage: later stages are compared with it."""
        return self._inside("encoders", f"stage{stage}.safetensors")

    @property
    def explained(self) -> Path:
        return self._inside("explain")

    def rehearsal_buffer(self, task: str) -> Path:
        """The file of one task's rehearsal buffer."""
        return self._inside("kept", f"{_file_name(task)}.safetensors")

    def refuse_links(self, *folders: str) -> None:
        """Refuse links in place of folders that other programs write."""
        for folder in folders:
            self._inside(folder)

    def _inside(self, *names: str) -> Path:
        """A folder of this run: a link in its place could lead writing, or deleting, anywhere."""
        path = self.path
        for name in names:
            path = path / name
            if path.is_symlink():
                raise RunError(f"{path} is a link to another place: a run keeps its files inside itself")
        return path

    @contextlib.contextmanager
    def lock(self, patience: float | None = None) -> Iterator[None]:
        """Lock the run for one training. The system releases the lock when the process dies, so it is never stale.

        `patience` is how many seconds to wait for another holder; none takes `LOCK_SECONDS`.
        """
        path = self.path / LOCK
        with contextlib.ExitStack() as stack:
            try:
                descriptor = open_regular(path, WRITE)
                stack.callback(os.close, descriptor)
                _take(descriptor, LOCK_SECONDS if patience is None else patience)
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            except BlockingIOError:
                raise RunError(f"run {self.path} is in use by {_holder(path)}: stop it first, or wait") from None
            except OSError as error:
                raise RunError(f"cannot lock run {self.path}: {reason(error)}") from error
            yield

    def stages_done(self) -> int:
        """Stages that the newest checkpoint has behind it; 0 without one.

        Reads one small file only, for plans and overviews: whoever resumes from the checkpoint verifies it.
        """
        try:
            newest = read_bounded(self.checkpoints / "last", SMALL_FILE_BYTES).decode().strip()
            if not re.fullmatch(r"\d{1,20}(\.\d{1,20})?", newest):
                return 0
            trainer = parse_json(read_bounded(self._inside("checkpoints", newest) / "trainer.json", LOG_BYTES))
            stage = trainer["position"]["stage"]
        except (OSError, ValueError, LookupError, TypeError):
            return 0
        return stage if type(stage) is int else 0

    def append_metrics(self, row: Mapping[str, JSON]) -> None:
        """Add a row of training metrics."""
        self._append(METRICS, row)

    def append_eval(self, row: Mapping[str, JSON]) -> None:
        """Add a row of an evaluation."""
        self._append(EVALS, row)

    def _append(self, name: str, row: Mapping[str, JSON]) -> None:
        try:
            line = json.dumps(dict(row), allow_nan=False) + "\n"
        except ValueError:
            bad = [key for key, value in row.items() if isinstance(value, float) and not abs(value) < float("inf")]
            raise NonFiniteError(f"{name}: {', '.join(bad) or 'a value'} is not a finite number") from None
        path = self.path / name
        try:
            # A row reaches the system in one write when the file closes: a killed process leaves whole rows.
            with open(open_regular(path, WRITE | os.O_APPEND), "wb") as file:
                file.write(line.encode())
        except OSError as error:
            raise RunError(f"cannot write {path}: {reason(error)}") from error

    def read_metrics(self) -> list[Row]:
        """Every row of `metrics.jsonl`, oldest first; a broken line is a `RunError` with its number."""
        return read_rows(self.path / METRICS)

    def read_evals(self) -> list[Row]:
        """Every row of `evals.jsonl`, oldest first; a broken line is a `RunError` with its number."""
        return read_rows(self.path / EVALS)

    def log_positions(self) -> dict[str, int]:
        """The lengths of the logs, whose rows are on the disk when this returns: a checkpoint keeps them."""
        positions = {}
        for name in (METRICS, EVALS):
            path = self.path / name
            try:
                with open(open_regular(path, WRITE), "wb") as file:
                    os.fsync(file.fileno())
                    positions[name] = os.fstat(file.fileno()).st_size
                fsync_folder(self.path)
            except OSError as error:
                raise RunError(f"cannot write {path}: {reason(error)}") from error
        return positions

    def truncate_logs(self, positions: Mapping[str, JSON]) -> None:
        """Drop the rows written after a checkpoint: a resumed training writes them again."""
        for name in (METRICS, EVALS):
            path, length = self.path / name, positions.get(name)
            if type(length) is not int or length < 0:
                raise CheckpointError(f"the checkpoint's length of {path} makes no sense: {length!r}")
            try:
                with open(open_regular(path, WRITE), "wb") as file:
                    size = os.fstat(file.fileno()).st_size
                    if size < length:
                        raise RunError(f"{path} has lost rows: {size} bytes, the checkpoint saw {length}; put it back")
                    file.truncate(length)
                    os.fsync(file.fileno())
            except OSError as error:
                raise RunError(f"cannot write {path}: {reason(error)}") from error

    def write_environment(self, *, device: str, gl: str | None, pixels: str | None) -> None:
        """Record what this training runs on. `gl` is the render backend, `pixels` the fingerprint of a frame."""
        path = self.path / ENVIRONMENT
        facts = {"device": device, "gl": gl, "pixels": pixels, **describe_machine()}
        facts |= {"command": command_line(), "commit": source_commit()}
        try:
            write_atomic(path, to_json(facts))
        except OSError as error:
            raise RunError(f"cannot write {path}: {reason(error)}") from error

    def read_environment(self) -> Row:
        """Return what `write_environment` recorded; empty when there is nothing."""
        return read_object(self.path / ENVIRONMENT) or {}


def _copy_file(source: str, target: str) -> None:
    """An ordinary file of a bearable size, and nothing else."""
    write_durable(Path(target), read_bounded(Path(source), FILE_BYTES))


def read_object(path: Path) -> Row | None:
    """A JSON object of a run folder; none if there is no such file. Anything else there is a `RunError`."""
    try:
        value = parse_json(read_bounded(path, SMALL_FILE_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"cannot read {path}: {reason(error)}") from error
    except ValueError as error:
        raise RunError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RunError(f"{path} is not a JSON object")
    return value


def _file_name(task: str) -> str:
    """A task's name as that of a file: nothing in it leads to another place."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*(/[A-Za-z0-9_][A-Za-z0-9_.:-]*)*", task) or len(task) > 200:
        raise RunError(f"task name {task!r} cannot name a file")
    return task.replace("/", "+")


def _take(descriptor: int, patience: float) -> None:
    """Lock the file. A holder just killed may leave a child that dies, or lets go of the file, a moment later."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _holder(path: Path) -> str:
    """Who holds the lock, as that process wrote it; shown only if it reads like what a process writes."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = read_bounded(path, SMALL_FILE_BYTES).decode().strip()
        if re.fullmatch(r"process \d{1,10} on [\w.-]{1,255}", text):
            return text
    return "another process"


def read_rows(path: Path) -> list[Row]:
    """Every row of a log, oldest first; none if it does not exist. A broken line is a `RunError` with its number."""
    return list(each_row(path))


def each_row(path: Path) -> Iterator[Row]:
    """The same one after the other: the logs of days need not be in memory at once."""
    try:
        for number, line in enumerate(lines_bounded(path, LOG_BYTES), start=1):
            yield _row(line, f"{path}, line {number}")
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"cannot read {path}: {reason(error)}") from error


def _row(line: bytes, place: str) -> Row:
    if not line.endswith(b"\n"):
        raise RunError(f"{place}: cut off in the middle")
    try:
        row = parse_json(line)
    except ValueError as error:
        raise RunError(f"{place}: not JSON ({error})") from None
    if not isinstance(row, dict):
        raise RunError(f"{place}: not a JSON object")
    return row
