"""Every subcommand: its fields are its flags. What it does is imported when it runs, so that --help is instant."""

from __future__ import annotations

from ctrlformer.cli.arguments import Command
from ctrlformer.cli.getting_started import Demo, Doctor, Presets, Tasks
from ctrlformer.cli.reproduce import Reproduce
from ctrlformer.cli.results import Eval, Explain, Report, Scores
from ctrlformer.cli.train import Add, Resume, Train

COMMANDS: dict[str, type[Command]] = {
    "train": Train,
    "resume": Resume,
    "add": Add,
    "eval": Eval,
    "scores": Scores,
    "report": Report,
    "explain": Explain,
    "tasks": Tasks,
    "presets": Presets,
    "doctor": Doctor,
    "demo": Demo,
    "reproduce": Reproduce,
}
