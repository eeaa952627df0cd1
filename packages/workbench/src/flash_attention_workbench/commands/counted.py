# SPDX-License-Identifier: Apache-2.0
"""The source lines of a kernel that use memory most, as tables."""

from __future__ import annotations

from rich.markup import escape

from flash_attention_workbench.commands.console import add_number_columns, output, report_table
from ptx_emulator import Counters
from ptx_emulator.report.findings import Sources
from ptx_emulator.report.hottest import hottest_places


def print_sites(counters: Counters, sources: Sources) -> None:
    """The hottest places in shared and in global memory."""
    for hottest in hottest_places(counters, lambda site: ", from ".join(sources.places(site))):
        table = report_table(hottest.title)
        table.add_column("source", overflow="fold")
        add_number_columns(table, hottest.numbers)
        for row in hottest.rows:
            table.add_row(*map(escape, row))
        output.print(table)
