# SPDX-License-Identifier: Apache-2.0
"""The block of docs/commands.md: every command with its options, from what its help says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from benchmarks.render.blocks import table, wrap
from flash_attention_workbench.commands.commands import app
from flash_attention_workbench.commands.lazy import LazyCommand

DOCUMENT = Path("docs/commands.md")
COMMANDS = "commands"
FINDING = "finding"
PLANTS = {Path("docs/emulator.md"): "missing-barrier"}
"""Which planted mistake a document shows."""


def commands_block() -> str:
    """Every command: what it does, its arguments and its options."""
    found = leaves(typer.main.get_command(app))
    return wrap(COMMANDS, (line for name, command in found for line in _lines(name, command)))


def finding_block(document: Path) -> str:
    """What `flash-attention emulate` prints of the planted mistake, but for the time it took."""
    words = ["emulate", "--plant", PLANTS[document]]
    printed = CliRunner().invoke(app, words).stdout
    lines = re.sub(r": \d+\.\d+ s$", "", printed, flags=re.M).splitlines()
    shown = (f"$ flash-attention {' '.join(words)}", *(line.rstrip() for line in lines))
    return wrap(FINDING, ("```", *shown, "```"))


def leaves(command: Any, name: str = "flash-attention") -> Iterator[tuple[str, Any]]:
    """The commands of a tree, each with all the words that call it."""
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command.load() if isinstance(command, LazyCommand) else command
        return
    for word, inner in below.items():
        yield from leaves(inner, f"{name} {word}")


def _lines(name: str, command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    words = " ".join([name, *(_place(argument) for argument in arguments)])
    rows = [[_option(p), _default(p), getattr(p, "help", "") or ""] for p in command.params]
    lines = ["", f"### `{words}`", "", command.help or ""]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return lines + (["", *table(["option", "default", "what"], cells, left=3)] if rows else [])


def _place(argument: Any) -> str:
    word = argument.metavar or argument.name.upper()
    return word if argument.required else f"[{word}]"


def _option(parameter: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    return ", ".join(f"`{name}`" for name in names)


def _default(parameter: Any) -> str:
    value = parameter.default
    told = isinstance(value, str | int | float | Path) and value is not False
    return f"`{value}`" if told else ""
