# SPDX-License-Identifier: Apache-2.0
"""One kernel's facts in a table, or two kernels' beside each other."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from flash_attention_workbench.commands.console import add_number_columns, report_table
from flash_attention_workbench.commands.inspect.facts import Facts, Value


def one(facts: Facts) -> Table:
    """Name and value, section by section."""
    table = report_table("")
    add_number_columns(table, ("",))
    for section, known in facts.items():
        table.add_section()
        table.add_row(f"[bold]{escape(section)}[/]")
        for name, value in known.items():
            table.add_row(f"  {escape(name)}", shown(value))
    return table


def two(before: Facts, after: Facts) -> Table:
    """The first, the second, and by how much they differ."""
    table = report_table("")
    add_number_columns(table, ("this", "against", "difference"))
    for section in before | after:
        first, second = before.get(section, {}), after.get(section, {})
        table.add_section()
        table.add_row(f"[bold]{escape(section)}[/]")
        for name in first | second:
            one_value, other = first.get(name, ""), second.get(name, "")
            cells = shown(one_value), shown(other), difference(one_value, other)
            table.add_row(f"  {escape(name)}", *cells)
    return table


def shown(value: Value) -> str:
    if isinstance(value, str):
        return escape(value)
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"


def difference(before: Value, after: Value) -> str:
    """How much more the first has than the second."""
    if before == after:
        return "="
    first, second = (0.0 if value == "" else value for value in (before, after))
    if isinstance(first, str) or isinstance(second, str):
        return ""
    change = first - second
    return f"+{shown(change)}" if change > 0 else shown(change)
