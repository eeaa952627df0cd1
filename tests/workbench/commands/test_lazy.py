# SPDX-License-Identifier: Apache-2.0
"""A command is imported when it is named; a list of commands shows what its docstring says."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import typer

from flash_attention_workbench.commands.commands import app
from flash_attention_workbench.commands.lazy import LazyCommand, LazyGroup
from tests.workbench.commands.invoke import invoke, refuse

ROOT: Any = typer.main.get_command(app)
LAZY = {
    f"{group.name} {name}": command
    for group in (ROOT, ROOT.commands["ladder"])
    for name, command in group.commands.items()
    if isinstance(command, LazyCommand)
}


def test_most_commands_are_lazy() -> None:
    others = {*ROOT.commands} - {name.split()[-1] for name in LAZY}
    assert others == {"cache", "ladder"}
    assert len(LAZY) == 15


@pytest.mark.parametrize("command", LAZY.values(), ids=list(LAZY))
def test_the_list_says_what_the_command_says(command: LazyCommand) -> None:
    loaded = command.load()
    assert command.help
    assert command.help == loaded.help
    assert command.name == loaded.name
    assert [option.name for option in loaded.params if not option.help] == []


def test_a_module_is_imported_when_its_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "flash_attention_workbench.commands.simulate"
    monkeypatch.delitem(sys.modules, module, raising=False)
    assert "How long each schedule" in invoke("--help")
    assert module not in sys.modules
    assert "--far-bandwidth" in invoke("simulate", "--help")
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
