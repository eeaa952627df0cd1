# SPDX-License-Identifier: Apache-2.0
"""Which kernel `flash-attention emulate` is asked to run: one of this package, or a file's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flash_attention.errors import UnsupportedError
from flash_attention.tools.commands.emulate import emulate
from flash_attention.tools.commands.user_kernel import emulate_user_kernel

_OF_FILES = ("entry", "grid", "block", "arg", "include", "compare", "tolerance")
_OF_RUNGS = ("rung", "config", "plant", "seq")
_OF_BOTH = ("schedule", "seed", "arch", "json")


def emulate_either(source: Path | None, smem: int, **given: Any) -> None:
    """Run what is named; options of the other kind of kernel are refused."""
    misplaced = [name for name in (_OF_FILES if source is None else _OF_RUNGS) if given[name]]
    if misplaced:
        names = ", ".join(f"--{name}" for name in misplaced)
        kind = "a .cu or .ptx file" if source is None else "kernels of this package"
        raise UnsupportedError(f"{names}: only for {kind}")
    if source is None:
        emulate(**{name: value for name, value in given.items() if name not in _OF_FILES})
        return
    both = {name: given[name] for name in _OF_BOTH}
    emulate_user_kernel(
        source,
        smem=smem,
        entry=given["entry"],
        grid=given["grid"],
        block=given["block"],
        arg=given["arg"] or (),
        include=given["include"] or (),
        reference=given["compare"],
        tolerance=given["tolerance"],
        **both,
    )
