# SPDX-License-Identifier: Apache-2.0
"""Well-known patterns: how each kernel is launched, and what NumPy says that it stores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ptx_emulator import Empty
from tests.user_kernel.corpus_kernels import floats, integers

Arrays = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """A launch of one kernel of a file, and the arrays that must be there afterwards.

    The first arrays among the arguments are compared with `wanted`.
    """

    file: str
    arguments: Arrays
    launch: dict[str, Any]
    wanted: Arrays
    variables: dict[str, Any] = field(default_factory=dict)

    @property
    def arch(self) -> str:
        return "sm_90a" if self.file == "pipelines.cu" else "sm_80"


def cases() -> dict[str, Case]:
    """All of them, by the names of the kernels."""
    return {**_scans(), **_rows(), **_products(), **_stencils(), **_counts(), **_pipelines()}


def _one_block(threads: int, **more: Any) -> dict[str, Any]:
    return {"grid": 1, "block": threads, **more}


def _scans() -> dict[str, Case]:
    n, x = integers(128, largest=100), floats(128)
    sums = np.cumsum(n)
    starts = (integers(128, seed=1) == 0).astype(np.int32)
    signed = n - 50
    kept = signed[signed > 0]
    some = floats(50, seed=2)
    words = integers(64, largest=1 << 10).astype(np.uint32)
    a, b = (np.sort(integers(45, seed=seed, largest=60)) for seed in (3, 4))
    unwritten = np.zeros(128, np.int32)
    return {
        "blelloch_scan": _scan((Empty(128, np.int32), n), 128, sums - n),
        "double_buffered_scan": _scan((Empty(128), x), 128, np.cumsum(x, dtype=np.float64)),
        "segmented_scan": _scan((Empty(128, np.int32), n, starts), 128, _segments(n, starts)),
        "keep_positive": Case(
            "scans.cu",
            (unwritten, Empty(1, np.int32), signed),
            _one_block(128),
            (np.append(kept, np.zeros(128 - len(kept))), np.array([len(kept)])),
        ),
        "bitonic_sort": _scan((Empty(128, np.int32), n), 128, np.sort(n)),
        "odd_even_sort": Case(
            "scans.cu",
            (Empty(50), some, 50),
            _one_block(64, dynamic_smem=200),
            (np.sort(some),),
        ),
        "radix_sort": _scan((Empty(64, np.uint32), words, 10), 64, np.sort(words)),
        "merge_by_rank": Case(
            "scans.cu",
            (Empty(90, np.int32), a, b, 45),
            {"grid": 2, "block": 64},
            (np.sort(np.append(a, b)),),
        ),
    }


def _scan(arguments: Arrays, threads: int, wanted: Any) -> Case:
    return Case("scans.cu", arguments, _one_block(threads), (wanted,))


def _segments(values: Any, starts: Any) -> Any:
    """Sums since the last start, and since the first lane of the warp."""
    found, total = [], 0
    for place, (value, start) in enumerate(zip(values, starts, strict=True)):
        total = value if start or place % 32 == 0 else total + value
        found.append(total)
    return np.array(found)


def _rows() -> dict[str, Case]:
    x, wide = floats(3, 100), floats(3, 100).astype(np.float64)
    weights = np.exp(wide)
    gain, scale = floats(100, seed=1), 1 / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6)
    target = np.array([5, 0, 99], np.int32)
    loss = np.log(weights.sum(axis=1)) - wide[np.arange(3), target]
    four, angle = floats(4, 80, seed=2), 6 * floats(4, 40, seed=3)
    left, right = four[:, :40].astype(np.float64), four[:, 40:]
    turned = (
        left * np.cos(angle) - right * np.sin(angle),
        right * np.cos(angle) + left * np.sin(angle),
    )
    rows = {"grid": 3, "block": 64}
    a, b = floats(500), floats(500, seed=1)
    counter = np.zeros(1, np.uint32)
    return {
        "online_softmax": Case(
            "rows.cu",
            (Empty((3, 100)), x, 100),
            {"grid": 3, "block": 32},
            (weights / weights.sum(axis=1, keepdims=True),),
        ),
        "rms_norm": Case(
            "rows.cu",
            (Empty((3, 100)), x, gain, 25),
            {"grid": 3, "block": 128},
            (wide * scale * gain,),
        ),
        "welford": Case(
            "rows.cu",
            (Empty(4), Empty(4), four, 80),
            {"grid": 2, "block": (32, 2)},
            (four.mean(axis=1, dtype=np.float64), four.var(axis=1, dtype=np.float64)),
        ),
        "cross_entropy": Case("rows.cu", (Empty(3), x, target, 100), rows, (loss,)),
        "argmax": Case("rows.cu", (Empty(3, np.int32), x, 100), rows, (x.argmax(axis=1),)),
        "rotary": Case(
            "rows.cu",
            (Empty((4, 80)), four, angle, 40),
            {"grid": 4, "block": 40},
            (np.concatenate(turned, axis=1),),
        ),
        "gather_rows": Case(
            "rows.cu",
            (Empty((3, 80)), four, np.array([2, 0, 2], np.int32), 40),
            rows,
            (four[[2, 0, 2]],),
        ),
        "dot_product": Case(
            "rows.cu",
            (Empty(1), Empty(4), counter, a, b, 500),
            {"grid": 4, "block": 64},
            (np.array([a.astype(np.float64) @ b]),),
        ),
    }


def _products() -> dict[str, Case]:
    a, b = floats(64, 64), floats(64, 64, seed=1)
    product, vector = a.astype(np.float64) @ b, floats(64, seed=2)
    halves = [floats(16, 16, seed=seed).astype(np.float16) for seed in (3, 4)]
    words = [half.view(np.uint16) for half in halves]
    launches: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
        "register_tile_matmul": ((2, 2), 64, ()),
        "vector_matmul": ((2, 2), 64, ()),
        "two_buffer_matmul": ((4, 4), (16, 16), ()),
        "async_matmul": ((4, 4), 64, ()),
        "split_k_matmul": ((4, 8, 2), (16, 8), (32,)),
    }
    found = {
        name: Case(
            "products.cu",
            (np.zeros((64, 64), np.float32) if more else Empty((64, 64)), a, b, 64, *more),
            {"grid": grid, "block": block},
            (product,),
        )
        for name, (grid, block, more) in launches.items()
    }
    return found | {
        "matrix_times_vector": Case(
            "products.cu",
            (Empty(64), a, vector, 64),
            {"grid": 16, "block": (32, 4)},
            (a.astype(np.float64) @ vector,),
        ),
        "half_matmul": Case(
            "products.cu",
            (Empty((16, 16)), *words),
            _one_block(32),
            (halves[0].astype(np.float64) @ halves[1].astype(np.float64),),
        ),
    }


def _stencils() -> dict[str, Case]:
    x, line = floats(20, 30), floats(64)
    around = np.pad(x, 1).astype(np.float64)
    sides = around[1:-1, :-2] + around[1:-1, 2:] + around[:-2, 1:-1] + around[2:, 1:-1]
    weights = floats(9, seed=5)
    clamped = np.pad(x, 1, mode="edge").astype(np.float64)
    convolved = sum(
        weights[3 * j + i] * clamped[j : j + 20, i : i + 30] for j in range(3) for i in range(3)
    )
    alive = (integers(32, 32, largest=3) == 0).astype(np.uint8)
    places = np.sort(floats(128, seed=6))
    apart = places[None].astype(np.float64) - places[:, None]
    tiles: dict[str, Any] = {"grid": (2, 2), "block": (16, 16)}
    return {
        "heat": Case(
            "grids.cu", (Empty((20, 30)), x, 30, 20), tiles, (x + 0.1 * (sides - 4.0 * x),)
        ),
        "relax": Case("grids.cu", (Empty(64), line, 9), _one_block(64), (_relaxed(line, 9),)),
        "convolve": Case(
            "grids.cu", (Empty((20, 30)), x, 30, 20), tiles, (convolved,), {"weights": weights}
        ),
        "max_pool": Case(
            "grids.cu",
            (Empty((10, 15)), x, 15),
            {"grid": 10, "block": 15},
            (x.reshape(10, 2, 15, 2).max(axis=(1, 3)),),
        ),
        "life": Case("grids.cu", (Empty((32, 32), np.uint8), alive, 32), tiles, (_next(alive),)),
        "attraction": Case(
            "grids.cu",
            (Empty(128), places, 128),
            {"grid": 2, "block": 64, "dynamic_smem": 256},
            ((apart / (apart**2 + 0.01)).sum(axis=1),),
        ),
    }


def _relaxed(line: Any, rounds: int) -> Any:
    for _ in range(rounds):
        line = np.concatenate((line[:1], (line[:-2] + line[2:]) / 2, line[-1:]))
    return line


def _next(alive: Any) -> Any:
    turns = ((j, i) for j in (-1, 0, 1) for i in (-1, 0, 1) if i or j)
    neighbours = sum(np.roll(alive, turn, (0, 1)).astype(int) for turn in turns)
    return (neighbours == 3) | ((alive == 1) & (neighbours == 2))


def _counts() -> dict[str, Case]:
    n = integers(300, largest=16)
    bins = np.bincount(n, minlength=16)
    large = integers(300, largest=10000)
    seeds = integers(96, largest=1 << 30).astype(np.uint32) + np.uint32(1)
    zeros = np.zeros(16, np.uint32)
    return {
        "matched_histogram": Case("grids.cu", (zeros, n, 300), {"grid": 3, "block": 128}, (bins,)),
        "warp_histograms": Case(
            "grids.cu", (Empty(16, np.uint32), n, 300), _one_block(128), (bins,)
        ),
        "largest": Case(
            "grids.cu",
            (np.zeros(1, np.int32), large, 300),
            {"grid": 2, "block": 96},
            (large.max(keepdims=True),),
        ),
        "mandelbrot": Case(
            "grids.cu",
            (Empty((12, 24), np.int32), -2.0, -1.2, 0.125),
            {"grid": (3, 2), "block": (8, 6)},
            (_escapes(),),
        ),
        "xorshift": Case(
            "grids.cu",
            (Empty(96, np.uint32), seeds, 7),
            {"grid": 2, "block": 48},
            (_shifted(seeds, 7),),
        ),
    }


def _escapes() -> Any:
    y, x = np.indices((12, 24)).astype(np.float32)
    point = (x * np.float32(0.125) - 2) + 1j * (y * np.float32(0.125) - np.float32(1.2))
    value, rounds = np.zeros((12, 24), np.complex128), np.zeros((12, 24), np.int32)
    for _ in range(30):
        inside = np.abs(value) < 2
        rounds += inside
        value = np.where(inside, value**2 + point, value)
    return rounds


def _shifted(state: Any, rounds: int) -> Any:
    for _ in range(rounds):
        state = state ^ state << np.uint32(13)
        state = state ^ state >> np.uint32(17)
        state = state ^ state << np.uint32(5)
    return state


def _pipelines() -> dict[str, Case]:
    x = floats(640)
    return {
        "pipelined_scale": Case(
            "pipelines.cu", (Empty(640), x, 1.5, 5), _one_block(160), (x * np.float32(1.5),)
        ),
        "bulk_stored_squares": Case(
            "pipelines.cu", (Empty(640), x), {"grid": 5, "block": 128}, (x * x,)
        ),
    }
