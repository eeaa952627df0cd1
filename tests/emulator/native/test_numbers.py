# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of floats, natively and by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptx_emulator.machine.arithmetic import numerics
from ptx_emulator.native import load_native

pytestmark = pytest.mark.skipif(load_native() is None, reason="needs a C compiler")

LANES = 4096
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, 1e-40, -1e-45, 3e38, 2.0**-126]
SHAPES = {
    "lanes": ((LANES,), (LANES,)),
    "rows": ((3, LANES), (3, LANES)),
    "a row beside rows": ((LANES,), (3, LANES)),
    "a column beside lanes": ((3, 1), (LANES,)),
    "every second row": ((6, LANES), (3, LANES)),
}


def numbers(shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Floats of all sizes, with many special ones."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 32, shape, np.uint32).view(np.float32)
    values = np.where(np.isnan(bits), np.float32(1), bits)
    chosen = rng.choice(np.array(SPECIAL, np.float32), shape)
    return np.ascontiguousarray(np.where(rng.random(shape) < 0.3, chosen, values))


def both(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *values: Any
) -> tuple[NDArray[Any], NDArray[Any]]:
    with np.errstate(all="ignore"):
        native = function(*values)
        with monkeypatch.context() as patched:
            patched.setattr(numerics, "load_native", lambda: None)
            return native.view(np.uint32), function(*values).view(np.uint32)


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_fused_products(monkeypatch: pytest.MonkeyPatch, shapes: Any) -> None:
    a, b = (np.nan_to_num(numbers(shape, seed)) for seed, shape in enumerate(shapes))
    a = a[::2] if len(a) == 6 else a
    c = np.nan_to_num(numbers(np.broadcast_shapes(a.shape, b.shape), 7))
    native, numpy = both(monkeypatch, numerics.fma, a, b, c)
    assert not np.isnan(numpy.view(np.float32)).any()
    assert (native == numpy).all()


@pytest.mark.parametrize("function", [numerics.larger, numerics.smaller])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_the_larger_and_the_smaller_number(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], shapes: Any
) -> None:
    a, b = (numbers(shape, seed) for seed, shape in enumerate(shapes))
    native, numpy = both(monkeypatch, function, a[::2] if len(a) == 6 else a, b)
    assert (native == numpy).all()


def test_what_is_no_number_is_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = numbers((LANES,), 1), numbers((LANES,), 2)
    a[::5] = b[::7] = np.nan
    native, numpy = both(monkeypatch, numerics.larger, a, b)
    assert (native == numpy).all()


def test_subnormals_are_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (1e-40, 1.0):
        x = numbers((3, LANES), 3)
        x[np.abs(x) < np.finfo(np.float32).tiny] = value
        native, numpy = both(monkeypatch, numerics.flush, x)
        assert (native == numpy).all()


@pytest.mark.parametrize("function", [numerics.pack_f16, numerics.pack_bf16])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_pairs_of_16_bits(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], shapes: Any
) -> None:
    low, high = (numbers(shape, seed) for seed, shape in enumerate(shapes))
    low = low[::2] if len(low) == 6 else low
    low[..., ::5], high[..., ::7] = np.nan, 65520
    native, numpy = both(monkeypatch, function, low, high)
    assert (native == numpy).all()
    assert (native & 0x7FFF == 0x7FFF).any()


def test_pairs_of_small_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = np.arange(1 << 13, dtype=np.float32) * np.float32(2.0**-26)
    native, numpy = both(monkeypatch, numerics.pack_f16, halves, -halves)
    assert (native == numpy).all()
