"""What an untrusted run folder may hold: each payload changes a sound run, and may aim at a folder outside it."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mutations import as_text, reseal

Payload = Callable[[Path, Path], None]  # the run, and the folder outside
MODULE = "an_untrusted_module"


class Bomb:
    """Unpickled, it makes the folder `mark`: the proof that something ran."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self._mark),))


def mark_of(outside: Path) -> Path:
    return outside.parent / "executed"


def pickled(outside: Path) -> bytes:
    return pickle.dumps(Bomb(mark_of(outside)))


def torch_file(outside: Path) -> bytes:
    data = io.BytesIO()
    torch.save({"weight": Bomb(mark_of(outside))}, data)
    return data.getvalue()


def newest(run: Path) -> Path:
    return run / "checkpoints" / (run / "checkpoints" / "last").read_text().strip()


def checkpoint_file(run: Path, name: str) -> Path:
    return newest(run) / name


def first(run: Path, pattern: str) -> Path:
    """The first file of the pattern; `newest/` is the newest checkpoint."""
    return sorted(run.glob(pattern.replace("newest", str(newest(run).relative_to(run)))))[0]


def edit(file: Path, change: Callable[[Any], None]) -> None:
    value = json.loads(file.read_bytes())
    change(value)
    file.write_bytes(as_text(value))


# Things that are not what their names say.


def write(pattern: str, data: Callable[[Path], bytes], run: Path, outside: Path) -> None:
    """Other bytes in place of a file, with right sums where sums vouch for it."""
    file, checkpoint = first(run, pattern), newest(run)
    file.write_bytes(data(outside))
    if file.parent == checkpoint and file.name != "manifest.json":
        reseal(file.parent)


def beside(name: str, data: Callable[[Path], bytes], run: Path, outside: Path) -> None:
    """One more file, which the manifest names."""
    folder = newest(run)
    if "/" not in name:
        (folder / name).write_bytes(data(outside))
    edit(folder / "manifest.json", lambda manifest: manifest["files"].update({name: {"bytes": 1, "sha256": ""}}))


def after_tensors(outside: Path) -> bytes:
    header = b"{}"
    return len(header).to_bytes(8, "little") + header + pickled(outside)


def zip_after_tensors(outside: Path) -> bytes:
    data = io.BytesIO()
    data.write((2).to_bytes(8, "little") + b"{}")
    with zipfile.ZipFile(data, "a") as archive:
        archive.writestr("data.pkl", pickled(outside))
    return data.getvalue()


def page_as_picture(outside: Path) -> bytes:
    return b"\x89PNG\r\n\x1a\n<script>document.title='broken'</script>" + pickled(outside)


def python_everywhere(run: Path, outside: Path) -> None:
    code = f"import os; os.mkdir({str(mark_of(outside))!r})\n"
    for folder in (run, newest(run), run / "kept", run / "replay", run / "explain"):
        for name in ("__init__", "sitecustomize", "conftest", "ctrlformer", "torch", "numpy", "setup"):
            (folder / f"{name}.py").write_text(code)


# Names that lead elsewhere.


def task_named(name: str, run: Path, outside: Path) -> None:
    """The first task of a run under another name, everywhere."""
    edit(run / "config.json", lambda config: config.update(tasks=[name, *config["tasks"][1:]]))

    def rename(trainer: Any) -> None:
        for part in ("action_dims", "kept", "lanes"):
            trainer[part] = {name if key == "toy/reach" else key: value for key, value in trainer[part].items()}

    edit(newest(run) / "trainer.json", rename)
    reseal(newest(run))
    text = (run / "evals.jsonl").read_text().replace('"toy/reach"', json.dumps(name))
    (run / "evals.jsonl").write_text(text)


def setting(section: str, values: dict[str, Any], run: Path, outside: Path) -> None:
    filled = {key: value.format(outside=outside) if isinstance(value, str) else value for key, value in values.items()}
    edit(run / "config.json", lambda config: (config[section] if section else config).update(filled))


def resnet(suffix: str, run: Path, outside: Path) -> None:
    """A frozen network whose weights file is an untrusted pickle."""
    weights = run / f"weights{suffix}"
    weights.write_bytes(torch_file(outside))
    setting("agent", {"shift": 0, "q_regularisation": False, "contrastive": False}, run, outside)
    setting("encoder", {"kind": "resnet50", "weights": str(weights), "normalise_pixels": False}, run, outside)


def trainer(change: Callable[[Any, Path], None], run: Path, outside: Path) -> None:
    edit(newest(run) / "trainer.json", lambda value: change(value, outside))
    reseal(newest(run))


def picture(name: str, run: Path, outside: Path) -> None:
    filled = name.format(outside=outside)
    edit(run / "explain" / "explain.json", lambda index: index["tasks"][0].update(attention=filled, video=filled))


# Links, second names and pipes.


def link(pattern: str, run: Path, outside: Path) -> None:
    """A link to the same content outside, in place of a file or folder."""
    path = first(run, pattern) if "*" in pattern or "newest" in pattern else run / pattern
    target = outside / f"linked-{path.name}"
    if path.exists():
        shutil.move(path, target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def link_to_folder(pattern: str, run: Path, outside: Path) -> None:
    """A link to a folder outside, where there was nothing."""
    (outside / "emptied").mkdir()
    (outside / "emptied" / "precious").write_bytes(b"precious")
    (run / pattern).parent.mkdir(parents=True, exist_ok=True)
    (run / pattern).symlink_to(outside / "emptied")


def tracker_through_link(tracker: str, run: Path, outside: Path) -> None:
    """A tracker that the run's own config asks for, whose folder is a link."""
    setting("training", {tracker: True}, run, outside)
    link_to_folder(tracker, run, outside)


def second_name(pattern: str, run: Path, outside: Path) -> None:
    """A hard link: the same file, which also has a name outside."""
    path = first(run, pattern) if "*" in pattern else run / pattern
    target = outside / f"second-{path.name}"
    if path.exists():
        shutil.move(path, target)
    else:
        target.write_bytes(b"precious")
    os.link(target, path)


def pipe(pattern: str, run: Path, outside: Path) -> None:
    path = first(run, pattern) if "*" in pattern or "newest" in pattern else run / pattern
    path.unlink(missing_ok=True)
    os.mkfifo(path)


# Bombs.


def tensor_file(header: bytes, length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header


def tensor(shape: str, end: int = 0) -> bytes:
    return tensor_file(f'{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,{end}]}}}}'.encode())


def sparse(pattern: str, size: int, run: Path, outside: Path) -> None:
    """A file that claims to be huge and takes no room."""
    with open(first(run, pattern), "wb") as file:
        file.truncate(size)


def many_checkpoints(run: Path, outside: Path) -> None:
    for step in range(1000, 2000):
        (run / "checkpoints" / f"{step}").mkdir()


FILES = [
    "config.json",
    "environment.json",
    "evals.jsonl",
    "metrics.jsonl",
    "lock",
    "checkpoints/last",
    "newest/manifest.json",
    "newest/trainer.json",
    "newest/encoder.safetensors",
    "newest/critic_optimiser.safetensors",
    "kept/*.safetensors",
    "encoders/*.safetensors",
    "replay/*/*.seg",
    "explain/explain.json",
    "explain/a.png",
]
FOLDERS = ["checkpoints", "newest", "replay", "replay/*", "kept", "encoders", "explain"]
OUTPUTS = [
    "report.html",
    "curve.png",
    "videos/toy-reach.mp4",
    "videos/.tmp-toy-reach.mp4",
    ".tmp-config.json",
    ".tmp-environment.json",
    ".tmp-report.html",
    ".tmp-curve.png",
    "checkpoints/.tmp-last",
    "kept/.tmp-toy+slide.safetensors",
    "encoders/.tmp-stage1.safetensors",
    "explain/.tmp-explain.json",
]

PAYLOADS: dict[str, Payload] = {
    **{f"pickle as {name}": partial(write, name, pickled) for name in FILES},
    "torch file as tensors": partial(write, "newest/encoder.safetensors", torch_file),
    "torch file as kept": partial(write, "kept/*.safetensors", torch_file),
    "pickle after tensors": partial(write, "newest/encoder.safetensors", after_tensors),
    "zip after tensors": partial(write, "newest/encoder.safetensors", zip_after_tensors),
    "page as picture": partial(write, "explain/a.png", page_as_picture),
    "python files": python_everywhere,
    **{
        f"manifest names {name}": partial(beside, name, pickled)
        for name in ("agent.pt", "agent.pkl", "agent.py", "../x.json", "/etc/hostname.json", "a/b.json", "..json")
    },
    **{
        f"task {name}": partial(task_named, name)
        for name in (
            "../../outside/x",
            "/etc/passwd",
            "gym/../../outside",
            f"gym/{MODULE}:Task-v0",
            f"gym/{MODULE}.sub:Task-v0",
            f"gym/{MODULE}:a:b",
            "gym/x\x00y",
            "toy/../reach",
            "manipulation/../../x",
        )
    },
    "weights elsewhere": partial(setting, "encoder", {"kind": "resnet50", "weights": "{outside}/precious"}),
    "weights from a pipe of numbers": partial(setting, "encoder", {"kind": "resnet50", "weights": "/dev/zero"}),
    "pickled weights .pt": partial(resnet, ".pt"),
    "pickled weights .safetensors": partial(resnet, ".safetensors"),
    "untrusted device": partial(setting, "training", {"device": "privateuseone:0"}),
    "untrusted preset": partial(setting, "", {"preset": "../../outside/x"}),
    "last leads elsewhere": partial(write, "checkpoints/last", lambda outside: b"../../outside\n"),
    "kept leads elsewhere": partial(trainer, lambda value, _: value["kept"].update({"../../outside/x": "0"})),
    "lane leads elsewhere": partial(
        trainer, lambda value, _: value["lanes"].update({"../../x": value["lanes"]["toy/slide"]})
    ),
    "log leads elsewhere": partial(trainer, lambda value, outside: value["logs"].update({f"{outside}/precious": 0})),
    "picture leads elsewhere": partial(picture, "../../outside/precious.png"),
    "picture at an absolute place": partial(picture, "{outside}/precious.png"),
    **{f"link as {name}": partial(link, name) for name in [*FILES, *FOLDERS, *OUTPUTS]},
    "link to a folder as videos": partial(link_to_folder, "videos"),
    **{f"link to a folder as {name}": partial(tracker_through_link, name) for name in ("tensorboard", "wandb")},
    "link as a checkpoint being written": partial(link_to_folder, "checkpoints/.tmp-16"),
    **{
        f"second name of {name}": partial(second_name, name)
        for name in ("evals.jsonl", "metrics.jsonl", "lock", "replay/toy+slide/*.seg", *OUTPUTS[:2], *OUTPUTS[4:])
    },
    **{f"pipe as {name}": partial(pipe, name) for name in [*FILES, "report.html", ".tmp-report.html"]},
    "header of 2^63 bytes": partial(write, "newest/encoder.safetensors", lambda _: tensor_file(b"{}", 2**63)),
    "header of 5 MB": partial(write, "newest/encoder.safetensors", lambda _: tensor_file(b" " * (5 << 20))),
    "huge shape": partial(write, "newest/encoder.safetensors", lambda _: tensor("[9999999,9999999]")),
    "overflowing shape": partial(write, "kept/*.safetensors", lambda _: tensor("[4294967296,4294967296,4]")),
    "huge empty shape": partial(write, "newest/heads.safetensors", lambda _: tensor("[0,18446744073709551615]")),
    **{f"deep {name}": partial(write, name, lambda _: b"[" * 500_000) for name in ("config.json", "evals.jsonl")},
    **{f"long number in {name}": partial(write, name, lambda _: b"9" * 900_000) for name in FILES[:4]},
    "deep state": partial(write, "newest/trainer.json", lambda _: b'{"a":' * 500_000),
    "huge log": partial(sparse, "evals.jsonl", 1 << 40),
    "huge config": partial(sparse, "config.json", 1 << 40),
    "huge tensors": partial(sparse, "newest/encoder.safetensors", 1 << 40),
    "huge replay": partial(sparse, "replay/toy+slide/*.seg", 1 << 40),
    "huge picture": partial(sparse, "explain/a.png", 1 << 40),
    "a thousand checkpoints": many_checkpoints,
    "networks of terabytes": partial(setting, "encoder", {"dim": 8192, "heads": 1, "blocks_per_stage": 64}),
    "a replay of terabytes": partial(setting, "training", {"replay_capacity": 1 << 40}),
    "frames of gigabytes": partial(setting, "env", {"image_size": 1 << 20}),
    "ten thousand tasks": partial(setting, "", {"tasks": [f"gym/{n}" for n in range(10_000)]}),
}
