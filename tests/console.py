# SPDX-License-Identifier: Apache-2.0
"""The commands of a document, which print what it shows, apart from numbers."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from typer.testing import CliRunner

from flash_attention_workbench.commands.commands import app

NUMBER = re.compile(r"(0x)?\d[\d,.]*(e[-+]\d+)?")  # of lines, errors, times and addresses


def masked(line: str) -> str:
    return " ".join(NUMBER.sub("#", line).split())


def run(command: str) -> str:
    """A command's standard output, which goes to a file where the command says so."""
    if not command.startswith("flash-attention"):
        subprocess.run(command, shell=True, check=True)
        return ""
    line, _, file = command.partition(" > ")
    printed = CliRunner().invoke(app, shlex.split(line)[1:]).stdout
    if file:
        Path(file).write_text(printed)
        return ""
    return printed


def check_commands(text: str) -> int:
    """Run the commands of console blocks, compare the lines, in order, and count the commands."""
    blocks = "".join(re.findall(r"```console\n(.*?)```", text, re.S))
    steps = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", blocks, re.M)
    for command, shown in steps:
        printed = iter([masked(line) for line in run(command).splitlines()])
        for line in shown.splitlines():
            assert line == "..." or masked(line) in printed, (command, line)
    return len(steps)
