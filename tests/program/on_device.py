# SPDX-License-Identifier: Apache-2.0
"""Programs in CUDA C++, run over a grid of scores by the emulator or on a GPU."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flash_attention.compile import compile_kernel, compile_to_ptx
from flash_attention.launch import driver
from flash_attention.program import verdict_text
from flash_attention.program.cuda_reader import HEADER, cuda_text
from flash_attention.program.layout import Sum, arguments, arguments_size
from flash_attention.program.reads import tables
from flash_attention.program.trace import Traced
from flash_attention.program.verdict import Tile
from ptx_emulator import GlobalMemory, load_program, run
from tests.launch.single import launch

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
  scores[i] = Function::score(args, of_head, of_query, of_key, in[i], batch, head, query, key,
                             static_cast<float>(key - query));
  slopes[i] = Function::slope(args, of_head, of_query, of_key, in[i], batch, head, query, key,
                             static_cast<float>(key - query));
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


class Memory(Protocol):
    """Memory of the emulator or of a GPU."""

    def put(self, array: NDArray[Any]) -> int:
        """The address of a copy of an array."""

    def read(self, address: int, dtype: Any, shape: Sequence[int]) -> NDArray[Any]:
        """What lies at an address that `put` gave."""

    def run(self, text: str, args: Sequence[bytes], grid: int, block: int) -> None:
        """Compile and run a kernel that has no mistake."""


class Emulator:
    """The emulator, which finds mistakes."""

    def __init__(self) -> None:
        self._memory = GlobalMemory()

    def put(self, array: NDArray[Any]) -> int:
        return self._memory.alloc(np.ascontiguousarray(array), name="array")

    def read(self, address: int, dtype: Any, shape: Sequence[int]) -> NDArray[Any]:
        return self._memory.read(address, dtype, shape)

    def run(self, text: str, args: Sequence[bytes], grid: int, block: int) -> None:
        kernel = compile_to_ptx(text, arch="sm_90a", name="function")
        program = load_program(kernel.ptx, kernel.entry)
        result = run(program, self._memory, grid=(grid, 1, 1), block=block, args=args)
        assert [str(finding) for finding in result.findings] == []


class Gpu:
    """The current GPU."""

    def __init__(self) -> None:
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._tensors: dict[int, Tensor] = {}

    def put(self, array: NDArray[Any]) -> int:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        tensor = torch.from_numpy(flat.copy()).to(self._device)
        self._tensors[tensor.data_ptr()] = tensor
        return tensor.data_ptr()

    def read(self, address: int, dtype: Any, shape: Sequence[int]) -> NDArray[Any]:
        return self._tensors[address].cpu().numpy().view(dtype).reshape(shape)  # type: ignore[no-any-return]

    def run(self, text: str, args: Sequence[bytes], grid: int, block: int) -> None:
        major, minor = torch.cuda.get_device_capability(self._device)
        arch = f"sm_{major}{minor}{'a' if major == 9 else ''}"
        kernel = compile_kernel(text, arch=arch, name="function")
        function = driver.load_kernel(kernel.cubin, kernel.entry)
        driver.ready_kernel(function, self._device.index, 0)
        blocks = [(ctypes.c_ubyte * len(each)).from_buffer_copy(each) for each in args]
        pointers = (ctypes.c_void_p * len(blocks))(*map(ctypes.addressof, blocks))
        stream = torch.cuda.current_stream(self._device).cuda_stream
        shape = (grid, 1, 1, block, 1, 1, 0)
        launch(function, shape, ctypes.addressof(pointers), stream, self._device.index)
        torch.cuda.synchronize(self._device)


class Session:
    """A program with its captured tensors in the memory of a device, "cpu" or "cuda"."""

    def __init__(self, traced: Traced, device: str, sums: Sequence[Sum] = ()) -> None:
        self.memory: Memory = Gpu() if device == "cuda" else Emulator()
        self.traced = traced
        self.sums = sums
        given = (*traced.tensors, *(tensor for each in sums for tensor in each.memory))
        self._addresses = [self._put_tensor(each) for each in given]
        self.args = arguments(traced, sums, self._addresses)
        assert len(self.args) == arguments_size(traced.program)

    def _put_tensor(self, tensor: Tensor) -> int:
        """The address of a copy of a tensor, which keeps its strides."""
        count = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        flat = tensor.detach().as_strided((count,), (1,)).contiguous()
        return self.memory.put(flat.view(torch.uint8).numpy())

    def totals(self) -> list[Tensor]:
        """The sums as kernels left them."""
        addresses = iter(self._addresses[len(self.traced.tensors) :])
        found = []
        for each in self.sums:
            read = [
                torch.from_numpy(self.memory.read(next(addresses), t.numpy().dtype, t.shape).copy())
                for t in each.memory
            ]
            found.append(Sum(read[0], read[1] if each.digits is not None else None).total())
        return found

    def run(
        self, source: str, *args: bytes | int, numbers: Sequence[int] = (), threads: int
    ) -> None:
        """Run a kernel behind the texts of the program. Its arguments are bytes and addresses, and
        then numbers."""
        program = self.traced.program
        text = f"#include <{HEADER}>\n#include <{verdict_text.HEADER}>\n"
        text += cuda_text(program) + verdict_text.verdict_text(program) + source
        for name in ("Function", "Verdict"):
            text += f"static_assert(sizeof({name}::Args) == {arguments_size(program)});\n"
        given = [each if isinstance(each, bytes) else struct.pack("Q", each) for each in args]
        given += [struct.pack("i", each) for each in numbers]
        self.memory.run(text, given, -(-threads // 128), 128)


def on_device(traced: Traced, score: Tensor, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """The mask, the changed scores and the slopes of scores of shape [batch, heads, q, k]."""
    session = Session(traced, device)
    memory, count = session.memory, score.numel()
    given = memory.put(score.numpy())
    results = [np.zeros(count, dtype) for dtype in (np.float32, np.float32, np.uint8)]
    places = [memory.put(each) for each in results]
    numbers = (*score.shape[1:], count)
    session.run(_KERNEL, session.args, given, *places, numbers=numbers, threads=count)
    scores, slopes, seen = (
        torch.from_numpy(memory.read(place, each.dtype, score.shape).copy())
        for place, each in zip(places, results, strict=True)
    )
    return seen.bool(), scores, slopes


def verdicts_on_device(traced: Traced, tiles: Sequence[Tile], device: str = "cpu") -> list[int]:
    """The verdicts of the kernel's text, with tables that a kernel filled."""
    session = Session(traced, device)
    memory, count = session.memory, len(tiles)
    filled = [
        memory.put(np.full(verdict_text.table_shape(traced, slot), -7, np.int32))
        for slot in tables(traced.program)
    ]
    bounds = verdict_text.bounds_arguments(traced.program, filled)
    if filled:
        session.run(_FILL, session.args, bounds, threads=256)
    given, results = memory.put(np.array(tiles, np.int32)), memory.put(np.full(count, -1, np.int32))
    session.run(_VERDICTS, session.args, bounds, given, results, numbers=[count], threads=count)
    return memory.read(results, np.int32, (count,)).tolist()  # type: ignore[no-any-return]
