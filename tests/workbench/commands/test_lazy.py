# SPDX-License-Identifier: Apache-2.0
"""A command is imported when it runs; its help and its parameters are read from its text."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest
import typer

from flash_attention_workbench.commands.commands import app
from flash_attention_workbench.commands.lazy import LazyCommand, LazyGroup
from flash_attention_workbench.commands.signature import READ
from tests.workbench.commands.invoke import invoke, refuse

ROOT: Any = typer.main.get_command(app)
LAZY = {
    f"{group.name} {name}": command
    for group in (ROOT, ROOT.commands["ladder"])
    for name, command in group.commands.items()
    if isinstance(command, LazyCommand)
}


def _facts(parameter: Any) -> tuple[object, ...]:
    facts = (parameter.name, parameter.opts, parameter.secondary_opts, parameter.default)
    return (*facts, parameter.required, parameter.help, parameter.metavar)


def test_most_commands_are_lazy() -> None:
    others = {*ROOT.commands} - {name.split()[-1] for name in LAZY}
    assert others == {"cache", "ladder"}
    assert len(LAZY) == 15


@pytest.mark.parametrize("command", LAZY.values(), ids=list(LAZY))
def test_what_is_read_is_what_is_imported(command: LazyCommand) -> None:
    loaded = command.load()
    app = typer.Typer(add_completion=False)
    app.command(command.name)(command.imported())
    imported: Any = typer.main.get_command(app)
    assert command.help
    assert command.help == loaded.help == imported.help
    assert command.name == loaded.name
    assert [_facts(p) for p in loaded.params] == [_facts(p) for p in imported.params]
    assert [option.name for option in loaded.params if not option.help] == []


@pytest.mark.parametrize("command", LAZY.values(), ids=list(LAZY))
def test_annotations_are_found_as_python_3_13_looks_for_them(
    command: LazyCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith(READ)]:
        monkeypatch.delitem(sys.modules, module)  # with the names that others have asked for
    found = inspect.signature(command._signature(), locals={}, eval_str=True).parameters
    assert [name for name, each in found.items() if isinstance(each.annotation, str)] == []


def test_a_module_is_imported_when_its_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "flash_attention_workbench.commands.simulate"
    monkeypatch.delitem(sys.modules, module, raising=False)
    assert "How long each schedule" in invoke("--help")
    assert "--far-bandwidth" in invoke("simulate", "--help")
    assert "an integer" in refuse("simulate", "--gpus", "many")
    assert module not in sys.modules
    assert "ring" in invoke("simulate", "--gpus", "2")
    assert module in sys.modules


def test_a_wrong_place_is_told() -> None:
    with pytest.raises(AttributeError, match="doctor has no function physician"):
        LazyCommand("doctor", "doctor:physician", computes=False).help  # noqa: B018
    assert LazyGroup.places == {}


def test_a_misspelt_command_is_told_its_name() -> None:
    assert "Did you mean 'bench'?" in refuse("benhc")


def test_h_is_help_everywhere() -> None:
    for command in ((), ("bench",), ("ladder",), ("ladder", "run")):
        assert invoke(*command, "-h") == invoke(*command, "--help")
    assert "--install-completion" in invoke("-h")
