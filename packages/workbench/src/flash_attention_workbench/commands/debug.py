# SPDX-License-Identifier: Apache-2.0
"""`flash-attention debug`: one key block, the kernel's state beside the reference's."""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from rich.markup import escape
from rich.table import Table
from torch import Tensor
from torch.nn.functional import max_pool2d

from flash_attention.errors import UnsupportedError
from flash_attention.reference.judge import Judge, check_lse, generate_qkv
from flash_attention_workbench.commands.chosen import chosen_kernel
from flash_attention_workbench.commands.console import (
    add_number_columns,
    output,
    quiet_compiles,
    report_table,
)
from flash_attention_workbench.commands.emulated import check_size
from flash_attention_workbench.commands.options import (
    ConfigOption,
    DHeadOption,
    DTypeOption,
    HeadsOption,
)
from flash_attention_workbench.debug import Inspection, State

TILES = 16  # cells along each side of the table of output differences
HOW = {
    "S": "scale q k^T; log(P) + lse where P is not 0, known there to {:.0e}",
    "lse": "log of the sum of exp(S) so far, as the kernel stores it",
    "P": "exp(S - lse) in 16 bits; O with an identity for the block's V",
    "O": "as the kernel stores it, of the keys so far",
}


def debug(
    rung: Annotated[int, typer.Option(help="the rung to look into")] = 16,
    key_block: Annotated[
        int, typer.Option(help="counted from 0 in the order the kernel visits them", min=0)
    ] = 0,
    row: Annotated[int, typer.Option(help="query row to print, and its block to check", min=0)] = 0,
    config: ConfigOption = None,
    gpu: Annotated[
        bool | None, typer.Option("--gpu/--emulator", help="where to run; the GPU if there is one")
    ] = None,
    seq: Annotated[int, typer.Option(help="rows of q, k and v", min=1)] = 256,
    heads: HeadsOption = 2,
    head: Annotated[int, typer.Option(help="the head to look at", min=0)] = 0,
    d_head: DHeadOption = 128,
    dtype: DTypeOption = "fp16",
    seed: Annotated[int, typer.Option(help="of q, k and v")] = 0,
) -> None:
    """S, lse, P and O after one key block: the kernel's beside a float64 reference.

    The kernel runs as it is, on the keys it has visited up to and including this block, and O and
    lse are what it stores then. P comes out as O when V is an identity for the keys of this block
    and 0 for the others, so a mistake in V's way shows in P too, in lse it does not. S follows from
    both: P has 16 bits, the table says how well S is known.

    Exit code 1 when O or lse is out of tolerance or the emulator found something.
    """
    name, kernel_config = chosen_kernel(rung, config, dtype=dtype, d_head=d_head, heads=heads)
    use_gpu = torch.cuda.is_available() if gpu is None else gpu
    if use_gpu and not torch.cuda.is_available():
        raise UnsupportedError("torch finds no CUDA device; leave --gpu out to use the emulator")
    kernel_config.check()
    if not use_gpu:
        check_size(heads * seq**2, seq * heads * kernel_config.d_head, "--seq 256 --heads 2")
    q, k, v = generate_qkv(1, seq, heads, kernel_config.d_head, kernel_config.dtype, seed=seed)
    if use_gpu:
        q, k, v = q.cuda(), k.cuda(), v.cuda()
    inspection = Inspection(kernel_config, q, k, v, step=key_block, row=row, head=head)
    with quiet_compiles():
        kernel = inspection.kernel
    where = "the GPU" if use_gpu else "the emulator"
    _print_title(name, inspection, where)
    output.print(_differences(inspection))
    output.print(_row_table(inspection, row))
    queries, keys, values = (t.cpu() for t in (inspection.q, inspection.k, inspection.v))
    judge = Judge(queries, keys, values)
    output.print(_heat_table(kernel.o, inspection, judge.allowed))
    check = judge.check(kernel.o.to(q.dtype)[None, :, None])
    lse_check = check_lse(kernel.lse.float()[None, None], queries, keys)
    for line in (f"O: {check}", str(lse_check), *(f"  {f}" for f in inspection.findings)):
        output.print(line, markup=False, highlight=False, soft_wrap=True)
    if inspection.findings or not check.ok or not lse_check.ok:
        raise typer.Exit(1)


def _print_title(name: str, inspection: Inspection, where: str) -> None:
    keys, rows = inspection.keys, inspection.rows
    output.print(
        f"[bold]{escape(name)}[/] on {where}, key block {inspection.step} as visited:"
        f" keys {keys[0]} to {keys[-1]}, query rows {rows[0]} to {rows[-1]}",
        highlight=False,
    )


def _parts(state: State) -> dict[str, Tensor]:
    return {"S": state.s, "lse": state.lse[:, None], "P": state.p, "O": state.o}


def _differences(inspection: Inspection) -> Table:
    table = report_table("what")
    add_number_columns(table, ("largest", "largest difference", "at row", "at column"))
    table.add_column("how the kernel tells")
    kernel, reference = _parts(inspection.kernel), _parts(inspection.reference)
    precision = inspection.s_precision
    for name, value in kernel.items():
        apart = (value - reference[name]).abs().nan_to_num(nan=torch.inf)
        if name == "S":
            apart[inspection.kernel.p == 0] = 0
        worst = int((apart - precision if name == "S" else apart).argmax())
        place, column = divmod(worst, apart.shape[1])
        table.add_row(
            name,
            f"{float(reference[name].abs().max()):.4g}",
            f"{float(apart[place, column]):.2e}",
            str(inspection.rows[place]),
            str(column) if apart.shape[1] > 1 else "",
            HOW[name].format(float(precision[place, column]) if name == "S" else 0),
        )
    return table


def _row_table(inspection: Inspection, row: int) -> Table:
    kernel, reference = inspection.kernel, inspection.reference
    table = report_table("key", title=f"row {row}")
    columns = ("S kernel", "S reference", "difference", "P kernel", "P reference", "difference")
    add_number_columns(table, columns)
    place = row - inspection.rows[0]
    for column, key in enumerate(inspection.keys):
        cells = []
        for mine, wanted in ((kernel.s, reference.s), (kernel.p, reference.p)):
            cells += _pair(mine[place, column], wanted[place, column])
        table.add_row(str(key), *cells)
    table.add_section()
    table.add_row("lse", *_pair(kernel.lse[place], reference.lse[place]))
    return table


def _pair(mine: Tensor, wanted: Tensor) -> list[str]:
    return [f"{float(mine):.5f}", f"{float(wanted):.5f}", f"{float(mine - wanted):+.1e}"]


def _heat_table(o: Tensor, inspection: Inspection, allowed: float) -> Table:
    """Largest differences of O by rows and columns, in percent of what is allowed."""
    error = 100 * (o - inspection.reference.o).abs().nan_to_num(nan=torch.inf) / allowed
    rows, columns = (-(-size // TILES) for size in error.shape)
    cells = max_pool2d(error[None], (rows, columns), ceil_mode=True)[0]
    table = report_table(
        f"O, columns / {columns}", title="largest difference of O, percent of the allowed error"
    )
    add_number_columns(table, (*(str(columns * j) for j in range(cells.shape[1])), "row"))
    for i, line in enumerate(cells):
        here = inspection.rows[rows * i : rows * (i + 1)]
        table.add_row(f"rows {here[0]}-{here[-1]}", *map(_cell, (*line, line.amax())))
    table.add_section()
    by_column = cells.amax(dim=0)
    table.add_row("column", *map(_cell, (*by_column, by_column.amax())))
    return table


def _cell(value: Tensor) -> str:
    percent = float(value)
    if percent == float("inf"):
        return "[bold red]inf[/]"
    return f"{percent:.0f}" if percent <= 100 else f"[bold red]{percent:.0f}[/]"
