# SPDX-License-Identifier: Apache-2.0
"""Products and rows against NumPy in double."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ptx_emulator import Empty
from tests.user_kernel.corpus_kernels import clean, corpus_kernel, floats

FILE = "matmul.cu"


@pytest.mark.parametrize("entry", ["naive_matmul", "tiled_matmul"])
def test_a_product_of_ragged_matrices(entry: str, schedule: str) -> None:
    a, b = floats(20, 37), floats(37, 25, seed=1)
    kernel = corpus_kernel(FILE, entry)
    c = clean(
        kernel, Empty((20, 25)), a, b, 20, 25, 37, grid=(2, 2), block=(16, 16), schedule=schedule
    ).arrays[0]
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-5)


def test_a_product_in_double() -> None:
    a, b = (floats(12, 12, seed=seed).astype(np.float64) for seed in (0, 1))
    c = clean(
        corpus_kernel(FILE, "double_matmul"), Empty((12, 12), np.float64), a, b, 12, grid=1,
        block=(12, 12),
    ).arrays[0]  # fmt: skip
    product = a @ b
    np.testing.assert_allclose(c, np.sqrt(np.abs(product)) / (1 + product**2), rtol=1e-12)


def test_softmax() -> None:
    x, out = floats(3, 100), np.zeros((3, 100), np.float32)
    clean(corpus_kernel(FILE, "softmax"), out, x, 100, grid=3, block=64)
    weights = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(out, weights / weights.sum(axis=1, keepdims=True), rtol=1e-5)


def test_layer_norm() -> None:
    x, gain, out = floats(4, 80), floats(80, seed=1), np.zeros((4, 80), np.float32)
    clean(corpus_kernel(FILE, "layer_norm"), out, x, gain, 80, grid=2, block=(32, 2))
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True)
    wanted = centred / np.sqrt(wide.var(axis=1, keepdims=True) + 1e-5) * gain
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)


def test_functions_of_the_mathematical_library() -> None:
    x, out = 3 * floats(48), np.zeros((48, 8), np.float32)
    clean(corpus_kernel(FILE, "activations"), out, x, grid=1, block=48)
    wide = x.astype(np.float64)
    erf = np.array([math.erf(value / math.sqrt(2)) for value in wide])
    wanted = [
        0.5 * wide * (1 + erf),
        wide / (1 + np.exp(-wide)),
        np.tanh(wide),
        np.sin(wide) + np.cos(wide),
        np.abs(wide) ** 1.5,
        np.log(np.abs(wide) + 1),
        np.floor(x) + np.ceil(x) + np.rint(x) + np.trunc(x),
    ]
    np.testing.assert_allclose(out[:, :7], np.stack(wanted, axis=1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(out[:, 7], np.fmod(x, np.float32(0.3)))
