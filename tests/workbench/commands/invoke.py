# SPDX-License-Identifier: Apache-2.0
"""Runs the command line inside the test process."""

from __future__ import annotations

from typer.testing import CliRunner

from flash_attention_workbench.commands.commands import app

_runner = CliRunner()


def invoke(*arguments: str, exit_code: int = 0) -> str:
    """Standard output of `flash-attention ARGUMENTS`, which must end with `exit_code`."""
    result = _runner.invoke(app, list(arguments))
    assert result.exit_code == exit_code, f"{result.output}\n{result.exception!r}"
    return result.stdout


def refuse(*arguments: str) -> str:
    """What `flash-attention ARGUMENTS` says when it refuses them."""
    result = _runner.invoke(app, list(arguments))
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return " ".join(result.stderr.split())
