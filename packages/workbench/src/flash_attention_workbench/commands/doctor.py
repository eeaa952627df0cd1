# SPDX-License-Identifier: Apache-2.0
"""`flash-attention doctor`: is everything here, does a kernel compile, does it run."""

from __future__ import annotations

import dataclasses

import typer
from rich.markup import escape
from rich.table import Table

from flash_attention.files import write_record
from flash_attention_workbench.commands.console import output, quiet_compiles, report_table
from flash_attention_workbench.commands.options import JsonOption
from flash_attention_workbench.commands.probes import PROBES, Finding, examine

_COLOURS = {"ok": "green", "missing": "yellow", "failed": "bold red"}


def doctor(
    json: JsonOption = None,
) -> None:
    """Look at everything a kernel needs; exit code 1 when something essential fails."""
    with quiet_compiles():
        findings = [examine(probe) for probe in PROBES]
    healthy = all(finding.status != "failed" for finding in findings)
    if json is not None:
        write_record(json, _as_json(findings, healthy))
    output.print(_table(findings))
    if not healthy:
        raise typer.Exit(1)


def _as_json(findings: list[Finding], healthy: bool) -> dict[str, object]:
    checks = {}
    for finding in findings:
        fields = dataclasses.asdict(finding)
        checks[fields.pop("name")] = fields
    return {"ok": healthy, "checks": checks}


def _table(findings: list[Finding]) -> Table:
    table = report_table("what")
    for column in ("status", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        colour = _COLOURS[finding.status]
        table.add_row(
            finding.name,
            f"[{colour}]{finding.status}[/]",
            escape(finding.detail),
            escape(finding.advice),
        )
    return table
