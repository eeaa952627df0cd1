# SPDX-License-Identifier: Apache-2.0
"""A function in Python that does what a kernel should do, and how far the kernel is from it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import UnsupportedError, shown

TOLERANCES = {2: 1e-2, 4: 1e-5, 8: 1e-12}  # by bytes of a float, relative to the largest value


@dataclass(frozen=True)
class Compared:
    """The largest difference of an array from what the reference has, and where it is."""

    name: str
    error: float
    limit: float
    where: tuple[int, ...]
    got: float
    wanted: float

    @property
    def ok(self) -> bool:
        return self.error <= self.limit

    def __str__(self) -> str:
        verdict = "right" if self.ok else "wrong"
        where = ", ".join(map(str, self.where))
        return (
            f"{self.name}: {verdict}, max error {self.error:.3e} at [{where}]"
            f" ({self.got:g}, the reference has {self.wanted:g}), within {self.limit:.3e}"
        )


def load_reference(text: str) -> Callable[..., object]:
    """The function that `FILE.py:FUNCTION` names."""
    file, _, name = text.rpartition(":")
    if not file or not Path(file).is_file():
        raise UnsupportedError(f"--compare is {shown(text)}; pass FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location("user_reference", file)
    if spec is None or spec.loader is None:
        raise UnsupportedError(f"--compare: {file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise UnsupportedError(f"--compare: {file} has no function {shown(name)}")
    return function  # type: ignore[no-any-return]


def compare_arrays(
    names: Sequence[str],
    got: Sequence[NDArray[Any]],
    wanted: Sequence[NDArray[Any]],
    sizes: Sequence[int],
    tolerance: float | None,
) -> list[Compared]:
    """How far every array is from the reference's. NaN is right where the reference has NaN.

    `sizes` are the bytes of an element as the kernel has it.
    """
    every = zip(names, got, wanted, sizes, strict=True)
    return [_compare(*each, tolerance) for each in every]


def _compare(
    name: str, got: NDArray[Any], wanted: NDArray[Any], size: int, tolerance: float | None
) -> Compared:
    floats = got.dtype.kind == "f"
    relative = tolerance if tolerance is not None else TOLERANCES.get(size, 0.0)
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(a - b))
    error = np.where(np.isnan(error), np.inf, error)
    largest = float(np.max(np.abs(b), where=np.isfinite(b), initial=0.0))
    place = np.unravel_index(int(error.argmax()), error.shape) if error.size else ()
    where = tuple(int(index) for index in place)
    return Compared(
        name,
        float(error[where]) if error.size else 0.0,
        relative * largest if floats else 0.0,
        where,
        float(a[where]) if error.size else 0.0,
        float(b[where]) if error.size else 0.0,
    )
