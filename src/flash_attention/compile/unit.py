# SPDX-License-Identifier: Apache-2.0
"""Unit: the text that NVRTC compiles into one kernel, as a person would write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar, cast

from flash_attention.compile.binding import Binding, headers, render_struct


@dataclass(frozen=True)
class Unit:
    """A translation unit: a name for people, what it is compiled for, and its text."""

    name: str
    target: str
    source: str


MakeUnit = TypeVar("MakeUnit", bound=Callable[..., Unit])
MAX_KEPT = 1024  # units of one function


def kept(make: MakeUnit) -> MakeUnit:
    """Keep the units that a function returns. A plan for a new shape mostly needs known ones, and
    rendering one takes longer than the rest of the plan."""
    return cast(MakeUnit, lru_cache(maxsize=MAX_KEPT)(make))


def render(
    *,
    entry: str,
    title: str,
    header: str,
    bindings: tuple[Binding, ...],
    asserts: str,
    bounds: str,
    parameters: Sequence[str],
    body: Sequence[str],
    wrappers: Sequence[str] = (),
    prelude: str = "",
) -> str:
    """The whole .cu of a kernel: includes, `struct Config`, and the entry.

    `entry` is the kernel's name, by which a profiler tells it from others. `header` declares what
    the body calls, and `bindings` bring their own headers; `prelude` declares what they name.
    `bounds` are the launch bounds, `asserts` tie what Python knows of a layout to what the compiler
    makes of it.
    """
    return "\n".join(
        (
            f"// {title}",
            *(f"#include <{include}>" for include in (header, *headers(bindings))),
            "",
            *([prelude, ""] if prelude else []),
            render_struct(bindings),
            "",
            *(line for wrapper in wrappers for line in (wrapper, "")),
            asserts,
            "",
            f'extern "C" __global__ void __launch_bounds__({bounds})',
            f"{entry}(",
            *(f"    {parameter}," for parameter in parameters[:-1]),
            f"    {parameters[-1]}) {{",
            *(f"  {line}" for line in body),
            "}",
            "",
        )
    )
