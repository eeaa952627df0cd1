# SPDX-License-Identifier: Apache-2.0
"""Which kernel `flash-attention emulate` is asked to run: one of this package, or a file's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flash_attention.errors import UnsupportedError
from flash_attention.tools.commands.emulate import emulate
from flash_attention.tools.commands.user_kernel import emulate_user_kernel


def emulate_either(
    source: Path | None,
    rung: int | None,
    config: str | None,
    plant: str | None,
    seq: int | None,
    heads: int,
    batch: int,
    d_head: int,
    dtype: str,
    schedule: str,
    seed: int,
    causal: bool,
    arch: str | None,
    json: Path | None,
    entry: str | None,
    grid: str | None,
    block: str | None,
    arg: list[str] | None,
    smem: int,
    include: list[Path] | None,
    compare: str | None,
    tolerance: float | None,
    watch: list[str] | None,
    break_: list[str] | None,
    thread: str | None,
) -> None:
    """Run what is named; options of the other kind of kernel are refused."""
    of_rungs: dict[str, Any] = {"rung": rung, "config": config, "plant": plant, "seq": seq}
    launch: dict[str, Any] = {"entry": entry, "grid": grid, "block": block, "compare": compare}
    order: dict[str, Any] = {"schedule": schedule, "seed": seed}
    if source is None:
        debug = {"watch": watch, "break": break_, "thread": thread}
        given = {**launch, **debug, "arg": arg, "include": include, "smem": smem}
        _refuse(given, "a .cu or .ptx file")
        problem: dict[str, Any] = {"heads": heads, "batch": batch, "d_head": d_head, "dtype": dtype}
        emulate(**of_rungs, **problem, **order, causal=causal, arch=arch, json=json)
        return
    _refuse(of_rungs, "kernels of this package")
    emulate_user_kernel(
        source,
        **launch,
        **order,
        arg=arg or [],
        include=include or [],
        smem=smem,
        tolerance=tolerance,
        arch=arch,
        json=json,
        watch=watch or [],
        breaks=break_ or [],
        thread=thread,
    )


def _refuse(given: Mapping[str, object], kind: str) -> None:
    names = ", ".join(f"--{name}" for name, value in given.items() if value)
    if names:
        raise UnsupportedError(f"{names}: only for {kind}")
