# SPDX-License-Identifier: Apache-2.0
"""A conformance case: a tiny CUDA kernel, its inputs, and what NumPy says it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash_attention.compile import ENTRY

Array = NDArray[Any]
WARP = 32
MAX_INPUTS = 4


@dataclass(frozen=True)
class Part:
    """A stretch of the output that one instruction fills.

    `ulp` is how far a result may be from `expected`, counted in float32 steps; 0 asks for the
    same bits. `absolute` is an error that is allowed whatever the steps. Of `real` numbers one NaN
    is as good as another.
    """

    name: str
    expected: Array
    ulp: int = 0
    absolute: float = 0.0
    real: bool = False


@dataclass(frozen=True)
class Case:
    """One kernel; `body` sees `in0`, `in1`, ... and `out`, pointers of the arrays' types.

    `parts` follow each other in `out`. A case of `arch` sm_90a runs on that GPU alone.
    """

    name: str
    body: str
    inputs: tuple[Array, ...]
    parts: tuple[Part, ...]
    threads: int = WARP
    blocks: int = 1
    arch: str = "sm_80"
    smem_bytes: int = 0
    prelude: str = ""

    @property
    def expected(self) -> Array:
        return np.concatenate([np.ravel(part.expected) for part in self.parts])

    @property
    def source(self) -> str:
        pointers = [
            f"  const {_C_TYPES[array.dtype.name]}* const in{i} ="
            f" static_cast<const {_C_TYPES[array.dtype.name]}*>(args.in{i});"
            for i, array in enumerate(self.inputs)
        ]
        out = _C_TYPES[self.expected.dtype.name]
        return "\n".join(
            (
                "#include <fa/core.cuh>",
                "using namespace fa;",
                self.prelude,
                f"struct Args {{ const void {_FIELDS}; void* out; }};",
                f'extern "C" __global__ void __launch_bounds__({self.threads})',
                f"{ENTRY}(const __grid_constant__ Args args) {{",
                *pointers,
                f"  {out}* const out = static_cast<{out}*>(args.out);",
                "  const int i = blockIdx.x * blockDim.x + threadIdx.x;",
                f"  constexpr int n = {self.threads * self.blocks};",
                self.body,
                "}",
                "",
            )
        )


_FIELDS = ", ".join(f"*in{i}" for i in range(MAX_INPUTS))
_C_TYPES = {"uint32": "u32", "uint64": "u64", "uint16": "unsigned short", "uint8": "unsigned char"}


@dataclass(frozen=True)
class Op:
    """One instruction on every element: `text` is inline PTX, %0 the result, %1 ... the inputs."""

    name: str
    text: str
    expected: Callable[..., Any]
    ulp: int = 0
    absolute: float = 0.0
    real: bool = False


def elementwise(
    name: str,
    ops: Sequence[Op],
    inputs: Sequence[Array],
    *,
    result: type[np.generic] = np.uint32,
    threads: int = 128,
    arch: str = "sm_80",
) -> Case:
    """A kernel in which thread i applies every op to element i of the inputs."""
    size = len(inputs[0])
    blocks, rest = divmod(size, threads)
    if rest or any(len(array) != size for array in inputs):
        raise ValueError(f"{name}: inputs of {[len(array) for array in inputs]} elements")
    lines = [f"  const auto x{i} = in{i}[i];" for i in range(len(inputs))]
    operands = ", ".join(f'"{_constraint(array)}"(x{i})' for i, array in enumerate(inputs))
    wide = np.dtype(result).itemsize == 8
    for k, op in enumerate(ops):
        text = op.text.replace("\n", " ")
        lines.append(
            f"  {{ {'u64' if wide else 'u32'} r;"
            f' asm volatile("{text}" : "={"l" if wide else "r"}"(r) : {operands} : "memory");'
            f" out[{k} * n + i] = r; }}"
        )
    parts = tuple(
        Part(
            op.name,
            np.asarray(op.expected(*inputs)).astype(result),
            op.ulp,
            op.absolute,
            op.real or op.ulp > 0,
        )
        for op in ops
    )
    return Case(name, "\n".join(lines), tuple(inputs), parts, threads, blocks, arch)


def _constraint(array: Array) -> str:
    return "l" if array.dtype.itemsize == 8 else "r"


def bits(values: Array) -> Array:
    """Float32 values as the words that hold them."""
    return np.asarray(values, np.float32).view(np.uint32)


def floats(words: Array) -> NDArray[np.float32]:
    """Words as the float32 values they hold."""
    return np.asarray(words, np.uint32).view(np.float32)
