# SPDX-License-Identifier: Apache-2.0
"""Launcher: loads and launches the kernels of a recipe on one CUDA device."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from flash_attention.call.problem import Problem
from flash_attention.families.recipe import Grid, Recipe, Resized, Step
from flash_attention.launch import driver
from flash_attention.launch.device import CPU, current_device, current_stream
from flash_attention.launch.kept_scratch import BLOCK_BYTES, kept_scratch
from flash_attention.launch.kernels import load_unit
from flash_attention.launch.tensor_map import MAX_ENCODED, Dims, EncodedMap, EncodedMaps
from flash_attention.launch.tile_counters import tile_counter

if TYPE_CHECKING:
    from cuda.bindings.driver import CUfunction

NVTX_VARIABLE = "FLASH_ATTENTION_NVTX"
"""Set to 1 before the first call of a kind, every kernel is queued in an NVTX range of its name."""


QUERY_ARGUMENTS = ("q", "o", "d_o", "dq")  # whose tensors have a row for every query
MAX_GRIDS = 4096  # of a kernel; beyond that all are dropped


class Launcher:
    """Loads the kernels of a recipe once, and queues them with the arguments of each call."""

    def __init__(self, recipe: Recipe, device_index: int) -> None:
        self._index = device_index
        self._counters = recipe.counters
        arguments = type(recipe.arguments)
        is_single = len(recipe.steps) == 1 and not recipe.steps[0].starts_early
        self._scratch = _Scratch(recipe.scratch, device_index, may_be_kept=is_single)
        self._has_ranges = os.environ.get(NVTX_VARIABLE, "0") not in ("", "0")
        kernels = [_LoadedKernel(step, arguments, device_index) for step in recipe.steps]
        self._steps = [
            _SizedStep(kernel, step.geometry.grid, tuple(m.dims for m in step.maps.values()))
            for kernel, step in zip(kernels, recipe.steps, strict=True)
        ]
        self.loaded = False

    def resized(self, resized: Resized, problem: Problem) -> Launcher:
        """Return a launcher of the same kernels for other lengths."""
        made = object.__new__(Launcher)
        vars(made).update(vars(self))
        made._scratch = self._scratch.resized(resized.scratch)
        made._steps = [
            _SizedStep(step.kernel, grid, step.kernel.dims_for(problem, step.dims))
            for step, grid in zip(self._steps, resized.grids, strict=True)
        ]
        return made

    def load(self) -> None:
        """Load the kernels onto the device. This may compile them."""
        with torch.cuda.device(self._index):
            for step in self._steps:
                step.kernel.load()
        self.loaded = True

    def launch(self, arguments: Any) -> None:
        """Queue the kernels on the current stream of the device. `arguments` holds the addresses of
        the call's tensors; those of scratch memory and the tile counter are added."""
        index = self._index
        if current_device() != index:
            with torch.cuda.device(index):
                return self.launch(arguments)
        stream = current_stream(index)
        if self._counters:
            arguments.tile_counter = tile_counter(index, stream, self._counters)
        # The memory belongs to the stream, so later users of it run after these kernels.
        scratch = self._scratch.into(arguments, stream) if self._scratch.size else None
        for step in self._steps:
            kernel = step.kernel
            for name, value in kernel.values:
                setattr(arguments, name, value)
            addresses = kernel.mapped(arguments)
            spare = step.spare.get(addresses)
            if spare is None:
                spare = step.spare_for(addresses)
            try:
                known = spare.pop()
            except IndexError:  # this is the first launch, or other threads are launching
                known = step.parameters(addresses)
            pointers, parameters, _ = known
            pointers[-1] = addressof(arguments)
            if self._has_ranges:
                torch.cuda.nvtx.range_push(kernel.name)
            config = step.configs[stream]
            (status,) = driver.launch_kernel(config, kernel.function, parameters, 0)
            if status:
                driver.launch_again(status, config, kernel.function, parameters, index)
            if self._has_ranges:
                torch.cuda.nvtx.range_pop()
            spare.append(known)
        del scratch


class _Scratch:
    """The temporary memory of a recipe's kernels."""

    def __init__(self, sizes: Mapping[str, int], device_index: int, *, may_be_kept: bool) -> None:
        self._index = device_index
        self._may_be_kept = may_be_kept
        self._device = torch.device("cpu" if device_index == CPU else f"cuda:{device_index}")
        self._set(sizes)

    def _set(self, sizes: Mapping[str, int]) -> None:
        self.size = sum(sizes.values())
        self._is_kept = self._may_be_kept and self.size <= BLOCK_BYTES
        self._starts = tuple(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))

    def resized(self, sizes: Mapping[str, int] | None) -> _Scratch:
        """Return memory of other sizes for the same kernels; None means the same sizes."""
        if sizes is None:
            return self
        made = object.__new__(_Scratch)
        vars(made).update(vars(self))
        made._set(sizes)
        return made

    def into(self, arguments: Any, stream: int) -> Tensor | None:
        """Store its addresses in `arguments`. It is allocated on the current stream, unless the
        stream keeps enough."""
        memory = None
        address = kept_scratch(self._index, stream) if self._is_kept else 0
        if not address:
            memory = torch.empty(self.size, dtype=torch.uint8, device=self._device)
            address = memory.data_ptr()
        for name, start in self._starts:
            setattr(arguments, name, address + start)
        return memory


class _LoadedKernel:
    """One kernel of a recipe with its tensor maps, whatever the lengths."""

    def __init__(self, step: Step, arguments: type[ctypes.Structure], device_index: int) -> None:
        self._geometry = step.geometry
        self._starts_early = step.starts_early
        self.name = step.unit.name
        self.values = tuple(step.values.items())
        self.mapped = _addresses_in(arguments, tuple(step.maps))
        self.function: CUfunction | None = None
        self.maps = [EncodedMaps(each, device_index) for each in step.maps.values()]
        self._of_queries = [name in QUERY_ARGUMENTS for name in step.maps]
        self._configs: dict[Grid, driver.LaunchConfigs] = {}
        self._device_index = device_index
        self._unit = step.unit
        self.pointers = ctypes.c_uint64 * (len(step.maps) + 1)

    def load(self) -> None:
        function = load_unit(self._unit).function
        driver.ready_kernel(function, self._device_index, self._geometry.smem_bytes)
        self.function = function

    def configs(self, grid: Grid) -> driver.LaunchConfigs:
        """Return the driver's configs of launches with a grid."""
        known = self._configs.get(grid)
        if known is None:
            if len(self._configs) >= MAX_GRIDS:
                self._configs.clear()
            geometry = self._geometry
            known = self._configs[grid] = driver.LaunchConfigs(
                (*grid, geometry.block, 1, 1, geometry.smem_bytes),
                early=self._starts_early,
                cluster=geometry.cluster,
            )
        return known

    def dims_for(self, problem: Problem, dims: Sequence[Dims]) -> Sequence[Dims]:
        """Return the sizes in tensor maps of a problem, from those of one that differs in lengths
        alone. The last of a tensor are its sequences or pages; packed rows come before them."""
        if not dims:
            return dims
        q, k = problem.first_sizes
        packed_q, packed_k = problem.total_q is not None, problem.total_k is not None
        found = []
        for each, is_of_q in zip(dims, self._of_queries, strict=True):
            size, is_packed = (q, packed_q) if is_of_q else (k, packed_k)
            found.append((*each[:2], size, 1) if is_packed else (*each[:-1], size))
        return found


class _SizedStep:
    """A kernel with the shape of its launch, and its tensor maps of one set of lengths."""

    __slots__ = ("configs", "dims", "kernel", "spare")

    def __init__(self, kernel: _LoadedKernel, grid: Grid, dims: Sequence[Dims]) -> None:
        self.kernel = kernel
        self.configs = kernel.configs(grid)
        self.dims = dims
        self.spare: dict[tuple[int, ...], list[_Parameters]] = {}
        """Parameters that no launch uses, by the addresses of the tensors with maps."""

    def spare_for(self, addresses: tuple[int, ...]) -> list[_Parameters]:
        """Return an empty list for parameters of a launch with tensors at other addresses."""
        if len(self.spare) >= MAX_ENCODED:
            self.spare.clear()
        return self.spare.setdefault(addresses, [])

    def parameters(self, addresses: tuple[int, ...]) -> _Parameters:
        """Make the parameters of a launch with tensors at these addresses."""
        kernel = self.kernel
        places = zip(kernel.maps, addresses, self.dims, strict=True)
        encoded = [maps[address, dims] for maps, address, dims in places]
        pointers = kernel.pointers(*map(addressof, encoded))
        return _Parameters(pointers, addressof(pointers), encoded)


class _Parameters(NamedTuple):
    """The parameters of a launch."""

    pointers: ctypes.Array[Any]  # the addresses of the tensor maps, and last of the arguments
    at: int  # the address of the pointers
    maps: list[EncodedMap]  # whose memory the launch reads


def _addresses_in(
    arguments: type[ctypes.Structure], names: tuple[str, ...]
) -> Callable[[ctypes.Structure], tuple[int, ...]]:
    """Make a function that reads several addresses from the arguments at once."""
    pattern, end = "<", 0
    for name in names:
        offset = getattr(arguments, name).offset
        pattern, end = f"{pattern}{offset - end}xQ", offset + 8
    return struct.Struct(pattern).unpack_from
