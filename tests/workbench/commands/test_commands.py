# SPDX-License-Identifier: Apache-2.0
"""The command tree as a user meets it."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.workbench.commands.invoke import invoke, refuse


def test_help_names_every_command() -> None:
    listed = invoke("--help") + invoke("ladder", "--help")
    commands = "doctor explain check bench tune inspect emulate debug report build ladder"
    for command in (*commands.split(), "list", "show", "diff", "run"):
        assert command in listed


def test_package_errors_leave_as_one_message() -> None:
    assert refuse("ladder", "show", "99").startswith("error: there is no rung 99; the ladder has")
    assert "dtype 'fp8' is not supported" in refuse("ladder", "list", "--dtype", "fp8")


def test_the_module_runs_and_reports_errors_through_its_exit_code() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "flash_attention", "ladder", "diff", "1", "99"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.returncode == 2
    assert "there is no rung 99" in result.stderr
    assert "Traceback" not in result.stderr


START = "from flash_attention_workbench.start import main; main()"  # as the script that pip makes


def run(command: str, *, shell: str) -> subprocess.CompletedProcess[str]:
    """A command of this package under a shell's redirection."""
    return subprocess.run(
        ["bash", "-c", f"{sys.executable} -c '{START}' {command} {shell}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_full_disk_below_the_report_is_one_message() -> None:
    result = run("ladder list", shell="> /dev/full")
    told = "error: cannot write standard output: No space left on device\n"
    assert (result.returncode, result.stderr) == (2, told)


def test_who_stops_reading_is_not_told() -> None:
    result = run("ladder list", shell="| true; exit ${PIPESTATUS[0]}")
    assert (result.returncode, result.stderr) == (1, "")


def test_streams_may_be_closed() -> None:
    assert run("ladder list --dtype fp8", shell=">&- 2>&-").returncode == 2
