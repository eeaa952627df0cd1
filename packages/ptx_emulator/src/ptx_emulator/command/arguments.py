# SPDX-License-Identifier: Apache-2.0
"""The arguments of a kernel as the command line writes them: `f32:x:1024@random`, `i32=1024`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import UnsupportedError, shown
from ptx_emulator.user_kernel.arguments import Given
from ptx_emulator.user_kernel.values import Empty

TYPES: dict[str, type[np.generic]] = {
    **{f"f{bits}": t for bits, t in ((16, np.float16), (32, np.float32), (64, np.float64))},
    **{f"i{8 * size}": np.dtype(f"i{size}").type for size in (1, 2, 4, 8)},
    **{f"u{8 * size}": np.dtype(f"u{size}").type for size in (1, 2, 4, 8)},
}
_ARRAY = re.compile(r"(\w+):(\w+):(\d+(?:x\d+)*)(?:@(.+))?")
_NUMBER = re.compile(r"(\w+)=(\S+)")
FORMS = "f32:x:1024@random (or zeros, ones, range, FILE.npy; without @ nothing is written), i32=7"
LARGEST_INTEGER = 10  # of random integers, exclusive


@dataclass(frozen=True)
class UserArgument:
    """One argument and what to call it."""

    name: str
    value: Given


def read_arguments(texts: Sequence[str], seed: int) -> list[UserArgument]:
    """The arguments that the texts describe; random ones differ from each other."""
    random = np.random.default_rng(seed)
    return [_read(text, index, random) for index, text in enumerate(texts)]


def _read(text: str, index: int, random: np.random.Generator) -> UserArgument:
    if match := _ARRAY.fullmatch(text):
        kind, name, sizes, source = match.groups()
        shape = tuple(int(size) for size in sizes.split("x"))
        dtype = _type(kind, text)
        if source is None:
            return UserArgument(name, Empty(shape, dtype))
        return UserArgument(name, _filled(source, shape, dtype, text, random))
    if match := _NUMBER.fullmatch(text):
        kind, number = match.groups()
        dtype = _type(kind, text)
        return UserArgument(f"argument {index}", _value(number, dtype, text))
    raise UnsupportedError(f"--arg is {shown(text)}; write it as {FORMS}")


def _type(kind: str, text: str) -> type[np.generic]:
    if kind not in TYPES:
        raise UnsupportedError(
            f"--arg {shown(text)} has the type {shown(kind)}; choose from {', '.join(TYPES)}"
        )
    return TYPES[kind]


def _value(number: str, dtype: type[np.generic], text: str) -> np.generic:
    try:
        value = float(number) if np.dtype(dtype).kind == "f" else int(number, 0)
        return np.array([value]).astype(dtype)[0]  # type: ignore[no-any-return]
    except (ValueError, OverflowError):
        raise UnsupportedError(
            f"--arg {shown(text)}: {shown(number)} is no {np.dtype(dtype).name}"
        ) from None


def _filled(
    source: str,
    shape: tuple[int, ...],
    dtype: type[np.generic],
    text: str,
    random: np.random.Generator,
) -> NDArray[Any]:
    integers = np.dtype(dtype).kind in "iu"
    if source == "random":
        drawn = (
            random.integers(0, LARGEST_INTEGER, shape) if integers else random.normal(size=shape)
        )
        return drawn.astype(dtype)
    if source in ("zeros", "ones"):
        return np.full(shape, source == "ones", dtype)
    if source == "range":
        return np.arange(prod(shape)).astype(dtype).reshape(shape)
    path = Path(source)
    if path.suffix != ".npy" or not path.is_file():
        raise UnsupportedError(f"--arg {shown(text)}: there is no file {source}; write {FORMS}")
    loaded: NDArray[Any] = np.load(path)
    if loaded.dtype != dtype or loaded.size != prod(shape):
        raise UnsupportedError(
            f"--arg {shown(text)}: {source} has {loaded.size} elements of {loaded.dtype}"
        )
    return np.ascontiguousarray(loaded).reshape(shape)
