# SPDX-License-Identifier: Apache-2.0
"""`flash-attention inspect`: one kernel looked at closely, with or without a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import torch
import typer
from rich.markup import escape

from flash_attention.arch import ARCHES
from flash_attention.call.features import PLAIN, Features, MaskKind
from flash_attention.errors import UnsupportedError
from flash_attention.launch.device import current_arch
from flash_attention_workbench.commands.console import output, quiet_compiles
from flash_attention_workbench.commands.emulated import EmulatedProblem
from flash_attention_workbench.commands.inspect import facts, tables
from flash_attention_workbench.commands.inspect.subject import (
    FORMS,
    Subject,
    arch_named,
    subject_of,
)
from flash_attention_workbench.commands.options import (
    CausalOption,
    DHeadOption,
    DTypeOption,
    HeadsOption,
    PassOption,
)
from flash_attention_workbench.inspect import listing, nsight
from flash_attention_workbench.inspect.inspection import Inspection, inspect_config
from flash_attention_workbench.inspect.launch import kernels, program
from flash_attention_workbench.inspect.sass import find_nvdisasm

EMULATED = (1, 256, 2)  # batch, rows, heads
PROFILED = (4, 8192, 16)


def inspect(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help=FORMS)],
    against: Annotated[str | None, typer.Option(help="another one, to compare with")] = None,
    arch: Annotated[
        str | None,
        typer.Option(help=f"out of {', '.join(ARCHES)}; left out, the GPU's or the kernel's own"),
    ] = None,
    causal: CausalOption = False,
    window: Annotated[bool, typer.Option("--window", help="with a sliding window")] = False,
    softcap: Annotated[bool, typer.Option("--softcap", help="with capped scores")] = False,
    varlen: Annotated[bool, typer.Option("--varlen", help="with lengths of their own")] = False,
    page: Annotated[int, typer.Option(help="keys of a page; 0: none", min=0)] = 0,
    dropout: Annotated[bool, typer.Option("--dropout", help="with dropout")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="print the machine code, marked")] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="print the PTX, marked")] = False,
    source: Annotated[bool, typer.Option("--source", help="print the CUDA, marked")] = False,
    emulate: Annotated[bool, typer.Option("--emulate", help="count in the emulator too")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="measure with ncu too")] = False,
    dtype: DTypeOption = "fp16",
    d_head: DHeadOption = 128,
    heads: HeadsOption = 16,
    pass_: PassOption = "forward",
) -> None:
    """Registers, occupancy, the hot loop instruction by instruction, and what limits it.

    Counts are of the instructions that every turn of the loop over key blocks executes; in a
    backward kernel it is the loop over query blocks. --pass says of which ladder a rung is. Needs
    nvdisasm (the extra "inspect"), --profile a GPU and ncu; nothing else.
    """
    mask = MaskKind.WINDOW if window else MaskKind.CAUSAL if causal else MaskKind.FULL
    asked = Features(mask, softcap, varlen, page_keys=page, dropout=dropout)
    names = [config] if against is None else [config, against]
    subjects = [
        subject_of(name, dtype=dtype, d_head=d_head, heads=heads, pass_=pass_, arch=arch)
        for name in names
    ]
    if sum((sass, ptx, source)) > 1 or (against and (sass or ptx or source)):
        raise UnsupportedError("--sass, --ptx and --source print one text of one kernel each")
    if profile and not torch.cuda.is_available():
        raise UnsupportedError("--profile measures on a GPU, and torch finds none; leave it out")
    if not (ptx or source):
        find_nvdisasm()  # or say what is missing, before anything is compiled
    with quiet_compiles():
        inspected = [_inspected(subject, asked, arch) for subject in subjects]
    if sass or ptx or source:
        _print_text(inspected[0], sass=sass, ptx=ptx)
        return
    found = []
    for name, kernel in zip(names, inspected, strict=True):
        _print_title(name, kernel)
        known = facts.facts_of(kernel, kernel.machine_loop())
        if emulate:
            known["emulator, {} x {}, {} heads".format(*EMULATED)] = _emulated(kernel)
        if profile:
            known["Nsight Compute, {} x {}, {} heads".format(*PROFILED)] = _profiled(kernel)
        found.append(known)
    output.print(tables.one(found[0]) if against is None else tables.two(*found))


def _inspected(subject: Subject, asked: Features, arch: str | None) -> Inspection:
    config, features = subject
    if features is None:
        features = asked
    elif asked != PLAIN:
        raise UnsupportedError(
            "selected: has the mask and the lengths of its problem; say causal or window=N there"
        )
    named = arch_named(arch)
    target = named or current_arch(config.default_arch)
    if named is None and config.broken_rule(target):
        target = config.default_arch
    return inspect_config(config, target, features)


def _print_title(name: str, kernel: Inspection) -> None:
    form = kernel.config.short_form()
    words = "".join(f", {word}" for word in kernel.features.words())
    title = f"{name}: " if name != form else ""
    line = f"[bold]{escape(title)}[/]{escape(form)}{words}, for {kernel.compiled.arch}"
    output.print(line, highlight=False, soft_wrap=True)


def _print_text(kernel: Inspection, *, sass: bool, ptx: bool) -> None:
    lines: Iterable[str]
    if sass:
        lines = listing.marked_sass(kernel.machine_loop())
    elif ptx:
        lines = listing.marked_ptx(kernel.compiled.ptx)
    else:
        lines = listing.marked_source(kernel.compiled)
    typer.echo(listing.LEGEND)
    typer.echo("\n".join(lines))


def _causal(kernel: Inspection, what: str) -> bool:
    if not kernel.features.dense:
        raise UnsupportedError(f"{what} runs full and causal attention; leave the rest out")
    return kernel.features.mask is MaskKind.CAUSAL


def _stored_heads(kernel: Inspection, otherwise: int) -> int:
    """How many heads must lie side by side, where a row stride is compiled in."""
    return kernel.config.row_stride // kernel.config.d_head or otherwise


def _emulated(kernel: Inspection) -> dict[str, facts.Value]:
    causal = _causal(kernel, "--emulate")
    batch, seq_len, heads = EMULATED
    problem = EmulatedProblem(
        kernel.config,
        batch=batch,
        seq_len=seq_len,
        heads=heads,
        stored_heads=_stored_heads(kernel, heads),
        causal=causal,
    )
    with quiet_compiles():
        return facts.emulated(problem.run(kernel.config, kernel.arch.name))


def _profiled(kernel: Inspection) -> dict[str, facts.Value]:
    causal = _causal(kernel, "--profile")
    batch, seq_len, heads = PROFILED
    shape = (batch, seq_len, _stored_heads(kernel, heads))
    (counted,) = nsight.counters(
        program(kernel.config, shape, causal), nsight.METRICS, kernels(kernel.config)
    )
    return {**nsight.in_units(counted)}
