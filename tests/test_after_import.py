# SPDX-License-Identifier: Apache-2.0
"""The import hook sees a module that has run, however it is found."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

import pytest

from flash_attention.after_import import AfterImport


@pytest.fixture
def acted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the hook saw in `watched_module`."""
    (tmp_path / "watched_module.py").write_text("number = 6\nnumber += 1\n")
    (tmp_path / "other_module.py").write_text("import watched_module\n")
    seen: list[int] = []
    hook = AfterImport({"watched_module": lambda module: seen.append(module.number)})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [hook, *sys.meta_path])
    for name in ("watched_module", "other_module"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return seen


def test_it_acts_when_the_module_has_run(acted: list[int]) -> None:
    module = importlib.import_module("other_module")
    assert acted == [7]
    importlib.import_module("watched_module")
    assert acted == [7]
    importlib.reload(module.watched_module)
    assert acted == [7, 7]


def test_other_hooks_see_the_module_too(acted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Other:
        def find_spec(self, name: str, path: None = None, target: ModuleType | None = None) -> None:
            asked.append(name)

    finders = [finder for finder in sys.meta_path if finder is not PathFinder]
    monkeypatch.setattr(sys, "meta_path", [*finders, Other(), PathFinder])
    importlib.import_module("watched_module")
    assert (asked, acted) == (["watched_module"], [7])


def test_a_module_that_is_not_there_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = AfterImport({"no_such_module": lambda module: None})
    monkeypatch.setattr(sys, "meta_path", [hook, *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        importlib.import_module("no_such_module")
