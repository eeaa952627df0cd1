# SPDX-License-Identifier: Apache-2.0
"""TMA: boxes of every rank into shared memory and out again, swizzled, over the edges."""

from __future__ import annotations

import numpy as np

from tests.emulator.conformance.case import Array
from tests.emulator.conformance.hopper_case import HopperCase, MapOf
from tests.emulator.hopper_kernels import tensor_copy_source

OFFSET, SMEM = 2048, 32 * 1024
MAX_RANK = 5
GEOMETRIES: list[tuple[tuple[int, ...], tuple[int, ...], int, list[tuple[int, ...]]]] = [
    ((40,), (16,), 0, [(0,), (24,), (32,), (-8,), (40,), (-16,)]),
    ((70, 21), (64, 9), 128, [(0, 0), (8, 12), (-8, -2), (16, 19), (0, 21)]),
    ((40, 12), (32, 16), 64, [(0, 0), (8, -4), (16, 5)]),
    ((33, 9), (16, 24), 32, [(0, 0), (24, 1), (-8, -8)]),
    ((64, 10, 3), (64, 8, 2), 128, [(0, 0, 0), (0, 5, 2), (0, -1, -1)]),
    ((24, 5, 4, 3), (16, 3, 2, 2), 0, [(0, 0, 0, 0), (8, 3, 3, 2), (-8, -1, -1, -1)]),
    ((20, 3, 4, 2, 3), (16, 2, 3, 1, 2), 32, [(0, 0, 0, 0, 0), (8, 2, 2, 1, 2)]),
]
"""Loads start anywhere that is a multiple of 16 bytes, even before the tensor."""
STEPPED: list[
    tuple[tuple[int, ...], tuple[int, ...], int, tuple[int, ...], list[tuple[int, ...]]]
] = [
    ((70, 21), (64, 18), 128, (1, 2), [(0, 0), (0, 1), (8, 12), (0, 19), (-8, -3)]),
    ((40, 12), (32, 16), 64, (1, 3), [(0, 0), (8, 7)]),
    ((64, 3, 13, 2), (64, 1, 8, 1), 128, (1, 1, 2, 1), [(0, 1, 0, 1), (0, 2, 9, 0)]),
    ((20, 9, 7), (16, 8, 7), 32, (1, 4, 2), [(0, 0, 0), (8, 5, 1)]),
]
"""Boxes of every second, third or fourth element along some dimensions."""


def _room(dims: tuple[int, ...], seed: int) -> tuple[Array, tuple[int, ...]]:
    """Memory for a tensor with a gap behind every dimension, and its byte strides."""
    extent = (-(-dims[0] // 8) * 8 + 8) * 2
    strides = []
    for dim in dims[1:]:
        strides.append(extent)
        extent *= dim + 1
    values = np.random.default_rng(seed).integers(1, 30000, extent // 2).astype(np.uint16)
    return values, tuple(strides)


def _tensor(room: Array, dims: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    shape, steps = tuple(reversed(dims)), (*reversed(strides), 2)
    return np.lib.stride_tricks.as_strided(room, shape, steps)


def _box(
    tensor: Array, extents: tuple[int, ...], at: tuple[int, ...], steps: tuple[int, ...]
) -> Array:
    """The box whose corner is `at`, zeros where the tensor ends."""
    values = np.zeros(tuple(reversed(extents)), np.uint16)
    for index in np.ndindex(values.shape):
        place = tuple(
            i * s + c for i, s, c in zip(index, reversed(steps), reversed(at), strict=True)
        )
        if all(0 <= p < size for p, size in zip(place, tensor.shape, strict=True)):
            values[index] = tensor[place]
    return values


def _image(values: Array, row_bytes: int, span: int) -> Array:
    """A box as TMA leaves it in shared memory: 16-byte chunks of rows exchanged."""
    linear = np.arange(values.size * 2, step=2)
    assert values.shape[-1] * 2 == row_bytes
    address = OFFSET + linear
    if span:
        address = address ^ ((address >> 7 & span // 16 - 1) << 4)
    image = np.zeros(values.size, np.uint16)
    image[(address - OFFSET) // 2] = values.reshape(-1)
    return image


def copy_case(
    dims: tuple[int, ...],
    box: tuple[int, ...],
    span: int,
    at: tuple[int, ...],
    steps: tuple[int, ...] = (),
) -> HopperCase:
    """Load a box, show its image, and store it in another tensor, whose rows are whole chunks.

    Stores may not start before a tensor, and have no steps.
    """
    each = steps or (1,) * len(dims)
    stepped = f" steps {steps}" if steps else ""
    extents = tuple(-(-size // step) for size, step in zip(box, each, strict=True))
    store_at = tuple(max(0, c) for c in at)
    store_dims = (-(-dims[0] // 8) * 8, *dims[1:])
    source, strides = _room(dims, 1)
    target, _ = _room(dims, 2)
    values = _box(_tensor(source, dims, strides), extents, at, each)
    stored = target.copy()
    tensor = _tensor(stored, store_dims, strides)
    for index in np.ndindex(values.shape):
        place = tuple(i + c for i, c in zip(index, reversed(store_at), strict=True))
        if all(0 <= p < size for p, size in zip(place, tensor.shape, strict=True)):
            tensor[place] = values[index]
    load_corner, store_corner = (
        np.array([*corner, *[0] * (MAX_RANK - len(at))], np.int32).tobytes()
        for corner in (at, store_at)
    )
    size = np.uint32(values.nbytes).tobytes()
    return HopperCase(
        name=f"tensor copy {dims} box {box} swizzle {span} at {at}{stepped}",
        source=tensor_copy_source(len(dims)),
        entry="tensor_copy",
        threads=32,
        smem_bytes=SMEM,
        buffers={
            "from": source,
            "to": target,
            "dump": np.zeros(values.size, np.uint16),
        },
        arguments=(
            MapOf("from", dims, strides, box, span, steps),
            MapOf("to", store_dims, strides, extents, span),
            load_corner,
            store_corner,
            np.uint32(OFFSET).tobytes(),
            size,
            size,
            "dump",
        ),
        expected={"dump": _image(values, box[0] * 2, span), "to": stored},
    )


def cases() -> list[HopperCase]:
    whole = [
        copy_case(dims, box, span, at) for dims, box, span, corners in GEOMETRIES for at in corners
    ]
    stepped = [
        copy_case(dims, box, span, at, steps)
        for dims, box, span, steps, corners in STEPPED
        for at in corners
    ]
    return whole + stepped
