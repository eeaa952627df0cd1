# SPDX-License-Identifier: Apache-2.0
"""`flash-attention ladder diff N M`."""

from __future__ import annotations

import dataclasses
import difflib
from functools import cache
from typing import Annotated

import typer
from rich.syntax import Syntax
from rich.table import Table

from flash_attention.arch import Arch, get_arch
from flash_attention.families.registry import unit_of
from flash_attention.kernel_configs import KernelConfig
from flash_attention.ladder import FAMILY, Rung, pick_rung
from flash_attention_workbench.commands.console import (
    add_number_columns,
    output,
    quiet_compiles,
    report_table,
)
from flash_attention_workbench.commands.ladder.inspection import RungInspection, inspect_rung
from flash_attention_workbench.commands.ladder.listing import change_between
from flash_attention_workbench.commands.options import (
    ArchOption,
    DHeadOption,
    DTypeOption,
    HeadsOption,
    PassOption,
    ladder_of,
)
from flash_attention_workbench.ladder.one_file import one_file


def diff(
    before: Annotated[int, typer.Argument(metavar="N", help="the rung to start from")],
    after: Annotated[int, typer.Argument(metavar="M", help="the rung to arrive at")],
    arch: ArchOption = None,
    dtype: DTypeOption = "fp16",
    d_head: DHeadOption = 128,
    heads: HeadsOption = 16,
    pass_: PassOption = "forward",
) -> None:
    """The changed field, the source, and what it did to registers and instructions."""
    rungs = ladder_of(dtype, d_head, heads, pass_)
    old_rung, new_rung = pick_rung(rungs, before), pick_rung(rungs, after)
    target = get_arch(arch) if arch else common_arch(old_rung, new_rung)
    for rung in (old_rung, new_rung):
        rung.config.check(target)
    output.print(
        f"[bold]{_title(old_rung)} -> {_title(new_rung)}[/] on {target.name}: {new_rung.idea}"
    )
    for line in changed_fields(old_rung, new_rung):
        output.print(f"  {line}", highlight=False)
    _print_source(source_diff(old_rung, new_rung))
    with quiet_compiles():
        old, new = inspect_rung(old_rung, target), inspect_rung(new_rung, target)
    output.print(_resources(old, new))
    if old.machine_code == new.machine_code:
        output.print(
            "The machine code is identical: this compiler makes the same program of both rungs."
        )
    else:
        output.print(_opcodes(old, new))


def common_arch(before: Rung, after: Rung) -> Arch:
    """The default architecture of one of two rungs, on which both run."""
    arches = (before.config.default_arch, after.config.default_arch)
    return next(
        arch
        for arch in arches
        if not before.config.broken_rule(arch) and not after.config.broken_rule(arch)
    )


def changed_fields(before: Rung, after: Rung) -> list[str]:
    """`field: old -> new` for every field that differs; of two families, those they share."""
    old, new = before.config, after.config
    names = {field.name for field in dataclasses.fields(new)}
    shared = [field.name for field in dataclasses.fields(old) if field.name in names]
    differing = [name for name in shared if getattr(old, name) != getattr(new, name)]
    families = [] if type(old) is type(new) else [FAMILY]
    return [change_between(old, new, name) for name in families + differing]


def source_diff(before: Rung, after: Rung) -> str:
    """Unified diff of the two rungs, each as one file."""
    old, new = (_text_of(rung.config) for rung in (before, after))
    return "".join(
        difflib.unified_diff(
            old.splitlines(keepends=True),
            new.splitlines(keepends=True),
            _title(before),
            _title(after),
        )
    )


@cache
def _text_of(config: KernelConfig) -> str:
    return one_file(unit_of(config).source)


def _title(rung: Rung) -> str:
    return f"rung {rung.number} {rung.name}"


def _print_source(text: str) -> None:
    if output.is_terminal:
        output.print(Syntax(text, "diff", background_color="default"))
    else:
        typer.echo(text)


def _resources(old: RungInspection, new: RungInspection) -> Table:
    table = _delta_table("resource", old, new)
    for name, before, after in (
        ("registers per thread", old.registers, new.registers),
        ("spilled bytes", old.spills, new.spills),
        ("shared memory, bytes", old.rung.config.smem_bytes(), new.rung.config.smem_bytes()),
        ("CTAs per SM", old.ctas_per_sm, new.ctas_per_sm),
    ):
        table.add_row(name, str(before), str(after), _signed(after - before))
    return table


def _opcodes(old: RungInspection, new: RungInspection) -> Table:
    before, after = old.instructions.opcodes, new.instructions.opcodes
    table = _delta_table(f"{new.instructions.language} instruction", old, new)
    changes = {opcode: after[opcode] - before[opcode] for opcode in before | after}
    for opcode, change in sorted(changes.items(), key=lambda item: (-abs(item[1]), item[0])):
        if change:
            table.add_row(opcode, str(before[opcode]), str(after[opcode]), _signed(change))
    total = after.total() - before.total()
    table.add_section()
    table.add_row("all", str(before.total()), str(after.total()), _signed(total))
    return table


def _delta_table(what: str, old: RungInspection, new: RungInspection) -> Table:
    table = report_table(what)
    add_number_columns(table, (_title(old.rung), _title(new.rung), "change"))
    return table


def _signed(change: int) -> str:
    return f"{change:+d}" if change else "="
