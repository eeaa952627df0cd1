# SPDX-License-Identifier: Apache-2.0
"""Kernels without a config, which every architecture runs: updates of a KV cache, and merges."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass

from flash_attention.compile.binding import Binding, Number
from flash_attention.compile.unit import Unit, render
from flash_attention.families.call_args import layout_asserts, parameter

_NAME = re.compile(r"(?:flash_)?(cache_update|merge)_(\w+)")


@dataclass(frozen=True)
class SmallKernel:
    """A kernel without a config."""

    kernel: str  # what it does: cache_update or merge
    variant: str  # what it is compiled for

    @property
    def name(self) -> str:
        """Its name in folders and logs; in profiles "flash_" precedes it."""
        return f"{self.kernel}_{self.variant}"


def parse_small_name(name: str) -> SmallKernel | None:
    """Return the kernel that has a name, or None if it is another kernel's name."""
    found = _NAME.fullmatch(name)
    return SmallKernel(*found.groups()) if found else None


def small_unit(
    kernel: SmallKernel,
    target: str,
    *,
    title: str,
    header: str,
    function: str,
    threads: int,
    bindings: Sequence[Binding],
    arguments: type[ctypes.Structure],
) -> Unit:
    """Return the translation unit of a kernel that calls `function`, which `header` declares."""
    source = render(
        entry=f"flash_{kernel.name}",
        title=title,
        header=header,
        bindings=(*bindings, Number("threads", threads)),
        asserts=layout_asserts(arguments),
        bounds=f"{threads}",
        parameters=(parameter(arguments),),
        body=(f"{function}<Config>(args);",),
    )
    return Unit(kernel.name, target, source)
