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

from ptx_emulator.choices import ARGUMENT_FORMS
from ptx_emulator.errors import UnsupportedError, shown
from ptx_emulator.machine.arithmetic.numerics import bf16_to_f32, to_bf16
from ptx_emulator.user_kernel.arguments import Given
from ptx_emulator.user_kernel.values import Empty, Tensor

TYPES: dict[str, type[np.generic]] = {
    **{f"f{bits}": t for bits, t in ((16, np.float16), (32, np.float32), (64, np.float64))},
    **{f"i{8 * size}": np.dtype(f"i{size}").type for size in (1, 2, 4, 8)},
    **{f"u{8 * size}": np.dtype(f"u{size}").type for size in (1, 2, 4, 8)},
}
BF16 = "bf16"  # held as uint16, which NumPy has instead
_SIZES = r"\d+(?:x\d+)*"
_ARRAY = re.compile(rf"(\w+):(\w+):({_SIZES})(?::box=({_SIZES}))?(?::swizzle=(\d+))?(?:@(.+))?")
_NUMBER = re.compile(r"(\w+)=(\S+)")
LARGEST_INTEGER = 10  # of random integers, exclusive


@dataclass(frozen=True)
class UserArgument:
    """One argument, what to call it, and the type that was written."""

    name: str
    value: Given
    kind: str

    @property
    def array(self) -> NDArray[Any] | Empty | None:
        """The array among it, if there is one."""
        value = self.value.array if isinstance(self.value, Tensor) else self.value
        return value if isinstance(value, np.ndarray | Empty) else None

    def numbers(self, array: NDArray[Any]) -> NDArray[Any]:
        """What the elements of its array mean."""
        return bf16_to_f32(array) if self.kind == BF16 else array


def read_arguments(texts: Sequence[str], seed: int) -> list[UserArgument]:
    """The arguments that the texts describe; random ones differ from each other."""
    random = np.random.default_rng(seed)
    return [_read(text, index, random) for index, text in enumerate(texts)]


def _read(text: str, index: int, random: np.random.Generator) -> UserArgument:
    if match := _ARRAY.fullmatch(text):
        kind, name, sizes, box, swizzle, source = match.groups()
        shape = _shape(sizes)
        array: NDArray[Any] | Empty = Empty(shape, _type(kind, text))
        if source is not None:
            array = _filled(source, shape, kind, text, random)
        if box is not None:
            return UserArgument(name, Tensor(array, _shape(box), int(swizzle or 0)), kind)
        if swizzle is not None:
            raise UnsupportedError(f"--arg {shown(text)} has a swizzle and no box")
        return UserArgument(name, array, kind)
    if match := _NUMBER.fullmatch(text):
        kind, number = match.groups()
        return UserArgument(f"argument {index}", _value(number, kind, text), kind)
    raise UnsupportedError(f"--arg is {shown(text)}; write it as {ARGUMENT_FORMS}")


def _shape(sizes: str) -> tuple[int, ...]:
    return tuple(int(size) for size in sizes.split("x"))


def _type(kind: str, text: str) -> type[np.generic]:
    if kind == BF16:
        return np.uint16
    if kind not in TYPES:
        known = ", ".join((BF16, *TYPES))
        raise UnsupportedError(
            f"--arg {shown(text)} has the type {shown(kind)}; choose from {known}"
        )
    return TYPES[kind]


def _value(number: str, kind: str, text: str) -> np.generic:
    dtype = np.dtype(_type(kind, text))
    try:
        if kind == BF16:
            return to_bf16(np.array([float(number)], np.float32))[0]  # type: ignore[no-any-return]
        if dtype.kind == "f":
            return np.array([float(number)]).astype(dtype)[0]  # type: ignore[no-any-return]
        return np.array([int(number, 0)], dtype)[0]  # type: ignore[no-any-return]
    except (ValueError, OverflowError):
        name = BF16 if kind == BF16 else dtype.name
        raise UnsupportedError(f"--arg {shown(text)}: {shown(number)} is no {name}") from None


def _filled(
    source: str, shape: tuple[int, ...], kind: str, text: str, random: np.random.Generator
) -> NDArray[Any]:
    dtype = np.dtype(_type(kind, text))
    if source not in ("random", "zeros", "ones", "range"):
        return _loaded(source, shape, kind, text)
    floats = dtype.kind == "f" or kind == BF16
    if source == "random":
        drawn = random.normal(size=shape) if floats else random.integers(0, LARGEST_INTEGER, shape)
    elif source == "range":
        drawn = np.arange(prod(shape)).reshape(shape)
    else:
        drawn = np.full(shape, source == "ones")
    return to_bf16(drawn.astype(np.float32)) if kind == BF16 else drawn.astype(dtype)


def _loaded(source: str, shape: tuple[int, ...], kind: str, text: str) -> NDArray[Any]:
    path, dtype = Path(source), np.dtype(_type(kind, text))
    if path.suffix != ".npy" or not path.is_file():
        raise UnsupportedError(
            f"--arg {shown(text)}: there is no file {source}; write {ARGUMENT_FORMS}"
        )
    try:
        loaded: NDArray[Any] = np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise UnsupportedError(f"--arg {shown(text)}: cannot read {source}: {error}") from None
    if kind == BF16 and loaded.dtype == np.float32:
        loaded = to_bf16(loaded)
    if loaded.dtype != dtype or loaded.size != prod(shape):
        raise UnsupportedError(
            f"--arg {shown(text)}: {source} has {loaded.size} elements of {loaded.dtype}"
        )
    return np.ascontiguousarray(loaded).reshape(shape)
