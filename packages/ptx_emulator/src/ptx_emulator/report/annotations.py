# SPDX-License-Identifier: Apache-2.0
"""Findings as workflows of GitHub show them, beside the lines of a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ptx_emulator.machine.launch.findings import Finding
from ptx_emulator.report.findings import FROM_HERE, Sources
from ptx_emulator.report.mends import MENDS

_ESCAPED = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_ESCAPED_IN_PROPERTIES = {**_ESCAPED, ":": "%3A", ",": "%2C"}


def finding_annotations(findings: Iterable[Finding], sources: Sources = FROM_HERE) -> Iterator[str]:
    """An error for each finding, at its line in the kernel."""
    for finding in findings:
        file, _, line = sources.places(finding.source)[-1].rpartition(":")
        said = str(replace(finding, source=None, other_source=None))
        mend = MENDS.get(finding.kind)
        yield annotation(file, finding.kind, f"{said}\n{mend}" if mend else said, line)


def annotation(file: str, title: str, message: str, line: str = "") -> str:
    """One error; without a file it stands at none."""
    where = {"file": file, "line": line if file else "", "title": title}
    properties = ",".join(
        f"{name}={_escaped(value, _ESCAPED_IN_PROPERTIES)}"
        for name, value in where.items()
        if value
    )
    return f"::error {properties}::{_escaped(message, _ESCAPED)}"


def _escaped(text: str, table: dict[str, str]) -> str:
    return "".join(table.get(character, character) for character in text)
