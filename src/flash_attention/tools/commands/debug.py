# SPDX-License-Identifier: Apache-2.0
"""`flash-attention debug`: one key block, the kernel's state beside the reference's."""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from flash_attention.errors import UnsupportedError
from flash_attention.reference.judge import Judge, generate_qkv
from flash_attention.tools.commands.console import (
    add_number_columns,
    output,
    quiet_compiles,
    report_table,
)
from flash_attention.tools.commands.options import (
    ConfigOption,
    DHeadOption,
    DTypeOption,
    HeadsOption,
    chosen_kernel,
)
from flash_attention.tools.debug import Inspection, State

TILES = 16  # cells along each side of the table of output differences
HOW = {
    "S": "q k^T, unscaled; instead of the exponentials, an identity for V",
    "m": "running maximum of the scaled scores; stored instead of O",
    "l": "running sum of the exponentials; stored instead of O",
    "P": "exp(scale S - m) in 16 bits; O unnormalised, an identity for V",
    "O": "the kernel as it is",
}


def debug(
    rung: Annotated[int, typer.Option(help="the rung to look into, below the wgmma one")] = 16,
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
    """S, m, l, P and O after one key block: the kernel's beside a float64 reference.

    The reference runs the online softmax block by block on the CPU. The kernel's O is that of the
    unchanged kernel on the keys it has visited up to this block, normalised. Its S, m, l and P are
    those of the same source with one slot replaced by a probe, which lets them out through the
    output. Loads, layouts, reads and products are the kernel's own; the machine code is not, as
    each form is compiled by itself. S and P leave through the product with an identity for V: a
    mistake in V's way shows in them too, in m and l it does not.

    Exit code 1 when O is out of tolerance or the emulator found something.
    """
    name, kernel_config = chosen_kernel(rung, config, dtype=dtype, d_head=d_head, heads=heads)
    use_gpu = torch.cuda.is_available() if gpu is None else gpu
    if use_gpu and not torch.cuda.is_available():
        raise UnsupportedError("torch finds no CUDA device; leave --gpu out to use the emulator")
    kernel_config.check()
    q, k, v = generate_qkv(1, seq, heads, kernel_config.d_head, kernel_config.dtype, seed=seed)
    if use_gpu:
        q, k, v = q.cuda(), k.cuda(), v.cuda()
    inspection = Inspection(kernel_config, q, k, v, step=key_block, row=row, head=head)
    with quiet_compiles():
        kernel = inspection.kernel
    where = "the GPU" if use_gpu else "the emulator"
    _print_title(name, inspection, where)
    output.print(_differences(inspection))
    output.print(_row_table(inspection, row - inspection.first_row))
    queries, keys, values = (
        t.cpu()[None, :, None] for t in (inspection.q, inspection.k, inspection.v)
    )
    judge = Judge(queries, keys, values)
    output.print(_heat_table(kernel.o, inspection, judge.allowed))
    check = judge.check(kernel.o.to(q.dtype)[None, :, None])
    output.print(f"O: {check}", markup=False, highlight=False)
    for finding in inspection.findings:
        output.print(f"  {finding}", markup=False, highlight=False, soft_wrap=True)
    if inspection.findings or not check.ok:
        raise typer.Exit(1)


def _print_title(name: str, inspection: Inspection, where: str) -> None:
    config, rows = inspection.config, inspection.first_row
    keys = inspection.key_block * config.B_c
    output.print(
        f"[bold]{escape(name)}[/] on {where}, key block {inspection.step} as visited:"
        f" keys {keys} to {keys + config.B_c - 1}, query rows {rows} to {rows + config.B_r - 1}",
        highlight=False,
    )


def _parts(state: State) -> dict[str, Tensor]:
    return {"S": state.s, "m": state.m[:, None], "l": state.l[:, None], "P": state.p, "O": state.o}


def _differences(inspection: Inspection) -> Table:
    table = report_table("what")
    add_number_columns(table, ("largest", "largest difference", "at row", "at column"))
    table.add_column("how the kernel tells")
    kernel, reference = _parts(inspection.kernel), _parts(inspection.reference)
    for name, value in kernel.items():
        apart = (value - reference[name]).abs().nan_to_num(nan=torch.inf)
        place, column = divmod(int(apart.argmax()), apart.shape[1])
        table.add_row(
            name,
            f"{float(reference[name].abs().max()):.4g}",
            f"{float(apart.max()):.2e}",
            str(inspection.first_row + place),
            str(column) if apart.shape[1] > 1 else "",
            HOW[name],
        )
    return table


def _row_table(inspection: Inspection, row: int) -> Table:
    kernel, reference = inspection.kernel, inspection.reference
    title = f"row {inspection.first_row + row}"
    table = report_table("key", title=title)
    columns = ("S kernel", "S reference", "difference", "P kernel", "P reference", "difference")
    add_number_columns(table, columns)
    first = inspection.key_block * inspection.config.B_c
    for column in range(inspection.config.B_c):
        cells = []
        for mine, wanted in ((kernel.s, reference.s), (kernel.p, reference.p)):
            cells += _pair(mine[row, column], wanted[row, column])
        table.add_row(str(first + column), *cells)
    table.add_section()
    for name, mine, wanted in (("m", kernel.m, reference.m), ("l", kernel.l, reference.l)):
        table.add_row(name, *_pair(mine[row], wanted[row]))
    return table


def _pair(mine: Tensor, wanted: Tensor) -> list[str]:
    return [f"{float(mine):.5f}", f"{float(wanted):.5f}", f"{float(mine - wanted):+.1e}"]


def _heat_table(o: Tensor, inspection: Inspection, allowed: float) -> Table:
    """Largest differences of O by rows and columns, in percent of what is allowed."""
    error = 100 * (o - inspection.reference.o).abs().nan_to_num(nan=torch.inf) / allowed
    rows, columns = (size // TILES for size in error.shape)
    cells = error.reshape(TILES, rows, TILES, columns).amax(dim=(1, 3))
    table = report_table(
        f"O, columns / {columns}", title="largest difference of O, percent of the allowed error"
    )
    add_number_columns(table, (*(str(columns * j) for j in range(TILES)), "row"))
    for i, line in enumerate(cells):
        first = inspection.first_row + rows * i
        table.add_row(f"rows {first}-{first + rows - 1}", *map(_cell, (*line, line.amax())))
    table.add_section()
    by_column = cells.amax(dim=0)
    table.add_row("column", *map(_cell, (*by_column, by_column.amax())))
    return table


def _cell(value: Tensor) -> str:
    percent = float(value)
    if percent == float("inf"):
        return "[bold red]inf[/]"
    return f"{percent:.0f}" if percent <= 100 else f"[bold red]{percent:.0f}[/]"
