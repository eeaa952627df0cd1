# SPDX-License-Identifier: Apache-2.0
"""Atomic operations on an array of cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.arithmetic.numerics import add_16, halves, larger, smaller

Array = NDArray[Any]

_OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": lambda old, value: old + value,
    "min": np.minimum,
    "max": np.maximum,
    "exch": lambda old, value: value,
    "and": lambda old, value: old & value,
    "or": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value,
    "inc": lambda old, value: np.where(old >= value, 0, old + 1).astype(old.dtype),
    "dec": lambda old, value: np.where((old == 0) | (old > value), value, old - 1),
}


HALVES = {"f16": "f16", "f16x2": "f16", "bf16": "bf16", "bf16x2": "bf16"}
HALVES_BY_NAME = {"add": add_16, "min": smaller, "max": larger}
COPIED = "copied f32"  # the type of additions by the copy engine


def apply_atomic(
    cells: Array, op: str, type: str, places: NDArray[np.int64], value: Array, compare: Array | None
) -> Array:
    """Apply `op` at every place, one after the other where places repeat; the values before.

    Additions of f32 by threads flush subnormals to zero; those of the copy engine (COPIED) do not.
    """
    if op == "cas" and compare is None:
        raise EmulatorError("atomic cas needs a value to compare with")
    if op != "cas" and op not in _OPERATIONS:
        raise EmulatorError(f"atomic {op!r} is not one of cas, {', '.join(_OPERATIONS)}")
    before = np.empty_like(value)
    for turn in _turns(places):
        old = cells[places[turn]]
        before[turn] = old
        if compare is not None:
            new = np.where(old == compare[turn], value[turn], old)
        elif type in HALVES:
            new = halves(HALVES_BY_NAME[op], HALVES[type], old, value[turn])
        elif op == "add" and type == "f32":
            new = _flush(_flush(old) + _flush(value[turn]))
        else:
            new = _OPERATIONS[op](old, value[turn])
        cells[places[turn]] = new
    return before


def _turns(places: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Indices in groups whose places differ; equal places follow one another in order."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    counts = np.diff(np.append(starts, len(order)))
    rank = np.arange(len(order)) - np.repeat(starts, counts)
    return [order[rank == turn] for turn in range(int(counts.max(initial=0)))]


def _flush(value: Array) -> Array:
    tiny = np.abs(value) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(np.float32(0), value), value)
