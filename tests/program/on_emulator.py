# SPDX-License-Identifier: Apache-2.0
"""Programs in CUDA C++, run over a grid of scores by the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flash_attention.compile import compile_to_ptx
from flash_attention.program import verdict_text
from flash_attention.program.cuda_reader import HEADER, cuda_text
from flash_attention.program.layout import arguments, arguments_size
from flash_attention.program.trace import Traced
from flash_attention.program.verdict import Tile
from ptx_emulator import GlobalMemory, load_program, run

_KERNEL = """
extern "C" __global__ void evaluate(const Function::Args args, const float* in, float* scores,
                                    float* slopes, unsigned char* seen, int heads, int queries,
                                    int keys, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int key = i % keys, query = i / keys % queries, head = i / keys / queries % heads;
  const int batch = i / keys / queries / heads;
  const auto of_head = Function::of_head(args, batch, head);
  const auto of_query = Function::of_query(args, of_head, batch, head, query);
  const auto of_key = Function::of_key(args, of_head, batch, head, key);
  seen[i] = Function::mask(args, of_head, of_query, of_key, batch, head, query, key);
  scores[i] = Function::score(args, of_head, of_query, of_key, in[i], batch, head, query, key);
  slopes[i] = Function::slope(args, of_head, of_query, of_key, in[i], batch, head, query, key);
}
"""

_FILL = """
extern "C" __global__ void fill(const Verdict::Args args, const Verdict::Bounds bounds) {
  const int threads = gridDim.x * blockDim.x;
  Verdict::fill(args, bounds, (blockIdx.x * blockDim.x + threadIdx.x) / 32, threads / 32);
}
"""
_VERDICTS = """
extern "C" __global__ void judge(const Verdict::Args args, const Verdict::Bounds bounds,
                                 const int* tiles, int* verdicts, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int* t = tiles + 6 * i;
  verdicts[i] = Verdict::verdict(args, bounds, t[0], t[1], t[2], t[3], t[4], t[5]);
}
"""


class Device:
    """Memory of the emulator, with the captured tensors of a program in it."""

    def __init__(self, traced: Traced) -> None:
        self.memory = GlobalMemory()
        self.traced = traced
        self.args = arguments(traced, [self.put_tensor(each) for each in traced.tensors])
        assert len(self.args) == arguments_size(traced.program)

    def put(self, array: NDArray[Any]) -> int:
        """The address of a copy of an array."""
        return self.memory.alloc(np.ascontiguousarray(array), name="array")

    def put_tensor(self, tensor: Tensor) -> int:
        """The address of a copy of a tensor, which keeps its strides."""
        count = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        flat = tensor.detach().as_strided((count,), (1,)).contiguous()
        return self.put(flat.view(torch.uint8).numpy())

    def run(self, source: str, args: list[Any], threads: int, block: int = 128) -> None:
        """Run a kernel that has no mistake, behind the texts of the program."""
        program = self.traced.program
        text = f"#include <{HEADER}>\n#include <{verdict_text.HEADER}>\n"
        text += cuda_text(program) + verdict_text.verdict_text(program) + source
        for name in ("Function", "Verdict"):
            text += f"static_assert(sizeof({name}::Args) == {arguments_size(program)});\n"
        kernel = compile_to_ptx(text, arch="sm_90a", name="function")
        result = run(
            load_program(kernel.ptx, kernel.entry),
            self.memory,
            grid=(-(-threads // block), 1, 1),
            block=block,
            args=args,
        )
        assert [str(finding) for finding in result.findings] == []


def on_emulator(traced: Traced, score: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mask, the changed scores and the slopes of scores of shape [batch, heads, q, k]."""
    device = Device(traced)
    count, (_, heads, queries, keys) = score.numel(), score.shape
    given = device.put(score.numpy())
    results = [np.zeros(count, dtype) for dtype in (np.float32, np.float32, np.uint8)]
    places = [device.put(each) for each in results]
    device.run(_KERNEL, [device.args, given, *places, heads, queries, keys, count], count)
    scores, slopes, seen = (
        torch.from_numpy(device.memory.read(place, each.dtype, score.shape).copy())
        for place, each in zip(places, results, strict=True)
    )
    return seen.bool(), scores, slopes


def verdicts_on_emulator(traced: Traced, tiles: Sequence[Tile]) -> list[int]:
    """The verdicts of the kernel's text, with tables that a kernel filled."""
    device = Device(traced)
    tables = []
    for slot in verdict_text.table_slots(traced.program):
        shape = verdict_text.table_shape(traced, slot)
        tables.append(device.memory.alloc(nbytes=4 * int(np.prod(shape)), name="table"))
    bounds = verdict_text.bounds_arguments(traced.program, tables)
    if tables:
        device.run(_FILL, [device.args, bounds], threads=256)
    given, count = device.put(np.array(tiles, np.int32)), len(tiles)
    results = device.put(np.full(count, -1, np.int32))
    device.run(_VERDICTS, [device.args, bounds, given, results, count], threads=count)
    return device.memory.read(results, np.int32, (count,)).tolist()  # type: ignore[no-any-return]
