from __future__ import annotations

import pytest
import torch

from ctrlformer.errors import ConfigError
from ctrlformer.system import device
from ctrlformer.system.device import choose_device, choose_precision, probed_precision, use_compiler

CPU = torch.device("cpu")


# Unknown; holds no numbers; and one that torch takes for a module to import.
@pytest.mark.parametrize("name", ["nonsense", "meta", "privateuseone"])
def test_an_unusable_device_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"training\.device '{name}' cannot be used here"):
        choose_device(name)


def test_a_usable_device_is_taken() -> None:
    assert choose_device("cpu") == CPU


def test_a_wish_is_not_probed() -> None:
    assert choose_precision("bf16", CPU) == "bf16"
    assert choose_precision("fp32", CPU) == "fp32"
    assert choose_precision("auto", CPU) in ("fp32", "bf16")


def test_the_probe_runs_in_a_child_and_answers() -> None:
    assert probed_precision("cpu") in ("fp32", "bf16")


@pytest.mark.parametrize(
    ("probe", "answer"),
    [
        ("print('bf16')", "bf16"),
        ("print('fp32')", "fp32"),
        ("import os; os.abort()", "fp32"),  # what a missing instruction does
        ("raise SystemExit(3)", "fp32"),
        ("print('bf16'); raise SystemExit(1)", "fp32"),
    ],
)
def test_only_a_clean_answer_counts(probe: str, answer: str) -> None:
    assert probed_precision("cpu", probe) == answer


def test_a_probe_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "PROBE_SECONDS", 0.5)
    assert probed_precision("cpu", "import time; time.sleep(30)") == "fp32"


def test_compiling_is_for_gpus_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "compiler_trouble", lambda _: None)
    said: list[str] = []
    assert not use_compiler("auto", CPU, said.append)
    assert not use_compiler("off", torch.device("cuda"), said.append)
    assert use_compiler("on", CPU, said.append)
    assert use_compiler("auto", torch.device("cuda"), said.append)
    assert not said


def test_without_a_compiler_it_goes_on_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("no compiler\nfound")

    monkeypatch.setattr(torch, "compile", broken)
    said: list[str] = []
    assert not use_compiler("on", CPU, said.append)
    assert said == [
        "torch.compile does not work here (RuntimeError: no compiler found): continuing without it, more slowly"
    ]


def test_a_device_that_holds_no_numbers_is_no_device() -> None:
    for name in ("meta", "privateuseone:0", "cuda:99", ""):
        with pytest.raises(ConfigError, match=r"training\.device"):
            choose_device(name)
