# SPDX-License-Identifier: Apache-2.0
"""How kernels of the corpus are launched."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptx_emulator import Empty
from tests.user_kernel.corpus_kernels import floats, integers

FILES = {
    **dict.fromkeys(("tree_sum", "shuffle_sum", "inclusive_scan", "atomic_sum"), "reductions.cu"),
    **dict.fromkeys(("half_warp_max", "redux_by_parity", "votes", "ballots"), "reductions.cu"),
    **dict.fromkeys(("transpose", "histogram", "stencil", "either_pointer"), "memory.cu"),
    **dict.fromkeys(("last_block_sum", "choose", "local_sort", "box"), "memory.cu"),
    **dict.fromkeys(("tiled_matmul", "naive_matmul", "softmax", "layer_norm"), "matmul.cu"),
    **dict.fromkeys(("double_matmul", "activations"), "matmul.cu"),
    **dict.fromkeys(("bits", "wide", "halves", "bfloats"), "integers.cu"),
    **dict.fromkeys(("mma_tf32", "mma_s8", "mma_f16", "mma_bf16_short"), "tensor_cores.cu"),
    **dict.fromkeys(("mma_e4m3", "rotate_behind_tokens", "copies_that_arrive"), "hopper.cu"),
}


def launches() -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments and the launch of kernels of the corpus, by their names."""
    x, n = floats(500), integers(256)
    zeros = np.zeros(64, np.uint32)
    tokens = (Empty(128, np.int32), n[:128].copy(), 3)
    return {
        "tree_sum": ((Empty(4), x, 500), {"grid": 4, "block": 128, "dynamic_smem": 512}),
        "shuffle_sum": ((Empty(2), x, 500), {"grid": 2, "block": 96}),
        "inclusive_scan": ((Empty(256, np.int32), n), {"grid": 1, "block": 256}),
        "atomic_sum": ((np.zeros(1, np.int32), n, 256), {"grid": 3, "block": 128}),
        "transpose": (
            (Empty((50, 40)), floats(40, 50), 50, 40),
            {"grid": (4, 3), "block": (16, 16)},
        ),
        "histogram": ((zeros, n.astype(np.uint8), 256), {"grid": 2, "block": 128}),
        "stencil": ((Empty(100), floats(100), 100), {"grid": 2, "block": 64}),
        "either_pointer": ((Empty(64), floats(64), 40), {"grid": 1, "block": 64}),
        "last_block_sum": (
            (np.zeros(1, np.int32), Empty(4, np.int32), np.zeros(1, np.uint32), n),
            {"grid": 4, "block": 64},
        ),
        **dict.fromkeys(
            ("tiled_matmul", "naive_matmul"),
            (
                (Empty((20, 25)), floats(20, 37), floats(37, 25), 20, 25, 37),
                {"grid": (2, 2), "block": (16, 16)},
            ),
        ),
        "softmax": ((Empty((3, 100)), floats(3, 100), 100), {"grid": 3, "block": 64}),
        "rotate_behind_tokens": (tokens, {"grid": 1, "block": 128}),
        "copies_that_arrive": ((Empty(256), floats(256)), {"grid": 1, "block": 64}),
    }


def more_launches() -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Those in which no mistake is planted."""
    one_warp: dict[str, Any] = {"grid": 1, "block": 32}
    two_warps: dict[str, Any] = {"grid": 1, "block": 64}
    n, x = integers(512, largest=1000), floats(512)
    square = floats(12, 12).astype(np.float64)
    half, words = x[:64].astype(np.float16), np.abs(x).view(np.uint32)
    bytes_ = integers(512, largest=120).astype(np.uint8).view(np.uint32)
    products = {
        "mma_tf32": (Empty((16, 8)), words[:128].copy(), words[128:192].copy()),
        "mma_s8": (Empty((16, 8)), bytes_[:128].copy(), bytes_[:64].copy()),
        "mma_f16": (Empty((16, 4), np.uint32), *_half_words(128, 64)),
        "mma_bf16_short": (Empty((16, 8)), *_bfloat_words(64, 32)),
        "mma_e4m3": (Empty((16, 8)), bytes_[:128].copy(), bytes_[:64].copy()),
        "bfloats": (Empty((32, 4), np.uint32), *_bfloat_words(32, 32)),
        "redux_by_parity": (Empty(32, np.int32), n[:32].copy()),
        "ballots": (Empty((32, 4), np.uint32), n[:32] % 4),
    }
    pairs = {
        "half_warp_max": (Empty(64, np.int32), n[:64].copy()),
        "votes": (Empty(64, np.int32), n[:64].copy()),
        "choose": (Empty(64, np.int32), n[:64] % 10),
        "local_sort": (Empty((64, 8), np.int32), n),
        "bits": (Empty((64, 8), np.int32), n[:64] * 1234567),
        "wide": (Empty((64, 4), np.int64), n[:64].astype(np.int64) ** 6),
        "halves": (Empty((64, 8), np.uint16), half.view(np.uint16), half[::-1].view(np.uint16)),
        "activations": (Empty((64, 8)), 3 * x[:64]),
    }
    return {
        **{name: (arguments, one_warp) for name, arguments in products.items()},
        **{name: (arguments, two_warps) for name, arguments in pairs.items()},
        "box": ((Empty((6, 6, 10), np.int32),), {"grid": (2, 2, 3), "block": (5, 3, 2)}),
        "layer_norm": (
            (Empty((4, 80)), floats(4, 80), floats(80, seed=1), 80),
            {"grid": 2, "block": (32, 2)},
        ),
        "double_matmul": (
            (Empty((12, 12), np.float64), square, square.T.copy(), 12),
            {"grid": 1, "block": (12, 12)},
        ),
    }


def _half_words(*counts: int) -> list[Any]:
    return [floats(2 * n, seed=n).astype(np.float16).view(np.uint32) for n in counts]


def _bfloat_words(*counts: int) -> list[Any]:
    halves = ((floats(2 * n, seed=n).view(np.uint32) >> 16).astype(np.uint16) for n in counts)
    return [half.view(np.uint32) for half in halves]
