"""Compiled loops."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numba
import numpy as np
import pytest

from ctrlformer.compiled import compiled


def test_compiled_code_needs_no_folder_to_be_kept_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only install and no home: also for root, who may write in folders that are read-only for others."""
    source = tmp_path / "filler.py"
    source.write_text("def fill(array):\n    array[:] = 7\n")
    (tmp_path / "__pycache__").write_text("a file where numba wants a folder")
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(source))
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    spec = importlib.util.spec_from_file_location("filler", source)
    assert spec is not None
    assert spec.loader is not None
    filler = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(filler)
    with pytest.raises(RuntimeError, match="cannot cache"):
        numba.njit(filler.fill, cache=True)
    array = np.zeros(3)
    compiled(filler.fill)(array)
    assert array.tolist() == [7, 7, 7]
