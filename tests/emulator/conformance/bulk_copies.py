# SPDX-License-Identifier: Apache-2.0
"""Bulk copies of plain bytes into shared memory, and out again by a store or an addition."""

from __future__ import annotations

import numpy as np

from tests.emulator.conformance.case import Array
from tests.emulator.conformance.hopper_case import HopperCase
from tests.emulator.hopper_kernels import BULK_COPY

SMEM = 16 * 1024
PLACES = [(0, 16), (16, 16), (48, 4 * 4 * 129), (2032, 8192)]  # offset, bytes


def copy_case(offset: int, data: Array, before: Array, *, add: bool, name: str) -> HopperCase:
    values, size = np.asarray(data, np.float32), np.uint32(4 * len(data)).tobytes()
    room = np.append(before, [7, 7, 7, 7]).astype(np.float32)
    after = room.copy()
    after[: len(values)] = before + values if add else values
    return HopperCase(
        name=f"bulk {'addition' if add else 'copy'} {name}",
        source=("#define ADD\n" if add else "") + BULK_COPY,
        entry="bulk_copy",
        threads=32,
        smem_bytes=SMEM,
        buffers={"from": values, "to": room, "dump": np.zeros_like(values)},
        arguments=("from", "to", np.uint32(offset).tobytes(), size, size, "dump"),
        expected={"dump": values, "to": after},
    )


def _subnormals() -> tuple[Array, Array]:
    """What is added, and to what: subnormal operands, results, and neither."""
    steps = [(0.5, 0.5), (-0.5, 1), (-1, 1.5), (0.25, 2**126), (2**126, -0.125), (-1.5, 1.25)]
    values = np.array([*steps, (1, 1), (0, -0.5)]).T * 2.0**-126
    data, before = np.ascontiguousarray(values, np.float32)
    return data, before


def cases() -> list[HopperCase]:
    rng = np.random.default_rng(60)
    made = []
    for add in (False, True):
        for offset, nbytes in PLACES:
            data, before = rng.standard_normal((2, nbytes // 4)).astype(np.float32)
            name = f"of {nbytes} bytes at {offset}"
            made.append(copy_case(offset, data, before, add=add, name=name))
        made.append(copy_case(0, *_subnormals(), add=add, name="of subnormals"))
    return made
