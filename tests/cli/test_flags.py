"""How values are written on the command line: switches, and whole numbers."""

from __future__ import annotations

import dataclasses

import pytest

from ctrlformer.cli.flags import SWITCHES
from ctrlformer.cli.main import _parse, main
from ctrlformer.cli.train import Train


def parsed(*words: str) -> Train:
    command = _parse(["train", "toy/reach", "--preset", "tiny", *words])
    assert isinstance(command, Train)
    return command


def value(command: Train, flag: str) -> bool:
    section, name = flag.removeprefix("--").replace("-", "_").split(".")
    found = getattr(getattr(command, section), name)
    assert isinstance(found, bool)
    return found


def test_every_setting_that_is_true_or_false_is_a_switch() -> None:
    command = parsed()
    expected = {
        f"--{section}.{field.name}".replace("_", "-")
        for section in ("env", "encoder", "agent", "transfer", "training")
        for field in dataclasses.fields(getattr(command, section))
        if isinstance(getattr(getattr(command, section), field.name), bool)
    }
    assert expected == SWITCHES
    assert {"--agent.contrastive", "--agent.q-regularisation"} <= SWITCHES


@pytest.mark.parametrize("flag", sorted(SWITCHES))
def test_all_spellings_of_a_switch_mean_the_same(flag: str) -> None:
    section, name = flag.split(".")
    for words in ([flag, "on"], [f"{flag}=on"], [flag], [flag.replace("-", "_").replace("__", "--", 1), "on"]):
        assert value(parsed(*words), flag) is True, words
    for words in ([flag, "off"], [f"{flag}=off"], [f"{section}.no-{name}"]):
        assert value(parsed(*words), flag) is False, words


def test_a_task_after_a_bare_switch_stays_a_task() -> None:
    command = _parse(["train", "--agent.contrastive", "toy/reach", "--training.compile", "on"])
    assert isinstance(command, Train)
    assert command.tasks == ("toy/reach",)
    assert command.agent.contrastive
    assert command.training.compile == "on"


@pytest.mark.parametrize("word", ["true", "False", "0"])
def test_other_words_are_refused_in_one_line(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "toy/reach", "--agent.contrastive", word]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--agent.contrastive" in line
    assert "on" in line
    assert word in line


def test_help_shows_on_and_off(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "--agent.q-regularisation {on,off}" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["100000", "100_000", "100k", "100K", "0.1M", "1e5"])
def test_whole_numbers_may_be_written_short(text: str) -> None:
    command = parsed("--frames", text, "--training.eval-every-frames", text)
    assert command.frames == command.training.eval_every_frames == 100_000


@pytest.mark.parametrize("text", ["1.5", "k", "1e400", "1e999999999", "nan", "inf", "1kk", "", "9" * 40])
def test_what_is_no_whole_number_is_one_line_and_exit_2(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "toy/reach", "--preset", "tiny", "--frames", text]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "--frames" in shown
