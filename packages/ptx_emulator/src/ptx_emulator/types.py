# SPDX-License-Identifier: Apache-2.0
"""PTX types as NumPy sees them.

A register is untyped storage; the instruction says what its bits mean. Values are therefore named
by a storage type ("u32", "i32", "f32", "b1", ...) and reinterpreted where an instruction differs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

STORAGE: dict[str, type[np.generic]] = {
    "b1": np.bool_,
    "u8": np.uint8,
    "i8": np.int8,
    "u16": np.uint16,
    "i16": np.int16,
    "f16": np.float16,
    "u32": np.uint32,
    "i32": np.int32,
    "f32": np.float32,
    "u64": np.uint64,
    "i64": np.int64,
    "f64": np.float64,
}

STORAGE_OF_PTX = {
    "pred": "b1",
    **{f"b{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    "f16": "f16",
    "f32": "f32",
    "f64": "f64",
    "bf16": "u16",
    "f16x2": "u32",
    "bf16x2": "u32",
}


ENVIRONMENT = {"envreg1", "envreg2"}  # where a grid that runs at once has its barrier
SPECIAL_REGISTERS = {
    *(f"{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"),
    *(f"{name}.{axis}" for name in ("cluster_ctaid", "cluster_nctaid") for axis in "xyz"),
    *(f"{name}.{axis}" for name in ("clusterid", "nclusterid") for axis in "xyz"),
    *("laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid"),
    *("cluster_ctarank", "cluster_nctarank", "is_explicit_cluster"),
    *(f"lanemask_{order}" for order in ("eq", "le", "lt", "ge", "gt")),
    *("dynamic_smem_size", "total_smem_size"),
    *ENVIRONMENT,
}

# Counters of time, and by how many bits their value is shifted to the right.
TIMERS = {
    **{"clock": 0, "clock64": 0, "clock_hi": 32},
    **{"globaltimer": 0, "globaltimer_lo": 0, "globaltimer_hi": 32},
}


def numpy_type(ptx_type: str) -> type[np.generic]:
    return STORAGE[STORAGE_OF_PTX[ptx_type]]


def size_of(storage: str) -> int:
    """Bytes of a storage type."""
    return np.dtype(STORAGE[storage]).itemsize


def numpy_name(storage: str) -> str:
    """How generated code spells the type."""
    return f"np.{STORAGE[storage].__name__}" if storage != "b1" else "np.bool_"


def scalar(storage: str, bits: int) -> Any:
    """The NumPy scalar with these bits (floats) or this value modulo the width (integers)."""
    if storage == "b1":
        return np.bool_(bits)
    size = size_of(storage)
    unsigned = STORAGE[f"u{8 * size}"]
    value = np.array([bits & ((1 << 8 * size) - 1)], np.uint64).astype(unsigned)
    return value.view(STORAGE[storage])[0]
