# SPDX-License-Identifier: Apache-2.0
"""Launcher: loads and launches the kernels of a recipe on one CUDA device."""

from __future__ import annotations

import ctypes
import os
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import addressof
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from flash_attention.call.problem import Problem
from flash_attention.families.recipe import Grid, Recipe, Resized, Step
from flash_attention.launch import driver
from flash_attention.launch.device import CPU, current_device, current_stream, is_capturing
from flash_attention.launch.kept_scratch import kept_scratch
from flash_attention.launch.kernels import load_unit
from flash_attention.launch.tensor_map import MAX_ENCODED, EncodedMap, EncodedMaps
from flash_attention.launch.tile_counters import tile_counter

if TYPE_CHECKING:
    from cuda.bindings.driver import CUfunction

NVTX_VARIABLE = "FLASH_ATTENTION_NVTX"
"""Set to 1 before the first call of a kind, every kernel is queued in an NVTX range of its name."""


ALIGNMENT = 16  # bytes, of every part of scratch memory
MOST_OWNED, MOST_OWNERS = 1 << 21, 32  # bytes of scratch memory that is kept between launches
QUERY_ARGUMENTS = ("q", "o", "d_o", "dq")  # whose tensors have a row for every query
_Maps = tuple[tuple[int, ...], list[EncodedMap]]
"""The addresses of tensor maps, and the maps, whose memory launches read."""


class Sized(NamedTuple):
    """What the launches of one set of lengths have of their own."""

    grids: tuple[Grid, ...]  # of each kernel
    scratch: _Scratch
    problem: Problem | None  # None: of a recipe that has no other lengths
    sizes: tuple[int, ...] = ()  # the first ones of q and of k, unless they are those of the recipe


class Launcher:
    """Loads the kernels of a recipe once, and queues them with the arguments of each call."""

    def __init__(self, recipe: Recipe, device_index: int, problem: Problem | None = None) -> None:
        self._index = device_index
        self._counters = recipe.counters
        arguments = type(recipe.arguments)
        may_be_kept = recipe.may_keep_scratch
        scratch = _Scratch(recipe.scratch, device_index, arguments, may_be_kept=may_be_kept)
        self._has_memory = bool(self._counters or scratch.size)
        self._has_ranges = os.environ.get(NVTX_VARIABLE, "0") not in ("", "0")
        self._kernels = [_LoadedKernel(s, arguments, device_index, problem) for s in recipe.steps]
        self.own = Sized(tuple(step.geometry.grid for step in recipe.steps), scratch, problem)
        """The lengths of the recipe."""
        self.loaded = False

    def sized(self, resized: Resized, problem: Problem) -> Sized:
        """Return what launches of the same kernels have with other lengths."""
        grids, sizes = resized
        scratch = self.own.scratch
        if sizes is not None:
            scratch = scratch.resized(sizes)
        return Sized(grids, scratch, problem, problem.first_sizes)

    def load(self) -> None:
        """Load the kernels onto the device. This may compile them."""
        with torch.cuda.device(self._index):
            for kernel in self._kernels:
                kernel.load()
        self.loaded = True

    def launch(self, arguments: Any, sized: Sized | None = None) -> None:
        """Queue the kernels on the current stream of the device. `arguments` holds the addresses of
        the call's tensors; those of scratch memory and the tile counter are added. The lengths are
        those of the recipe unless others are given."""
        index = self._index
        if current_device() != index:
            with torch.cuda.device(index):
                return self.launch(arguments, sized)
        stream = current_stream(index)
        grids, scratch, _, sizes = sized or self.own
        memory = None
        if self._has_memory:
            if arguments.stream != stream or arguments.scratch is not scratch or is_capturing():
                memory = self._add_memory(arguments, scratch, stream)
            elif not arguments.keeps_scratch:
                memory = arguments.memory
                if memory is None:
                    memory = _own_memory(arguments, scratch)
        every = arguments.parameters
        if every is None:
            every = arguments.parameters = [_Parameters(k, arguments) for k in self._kernels]
        for kernel, grid, parameters in zip(self._kernels, grids, every, strict=False):
            for name, value in kernel.values:
                setattr(arguments, name, value)
            if kernel.maps:
                mapped = kernel.mapped(arguments) + sizes
                if mapped != parameters.mapped:
                    known = kernel.known.get(mapped) or kernel.encode(mapped, sizes)
                    parameters.mapped, parameters.maps = mapped, known
                    kernel.put_addresses(parameters.pointers, 0, *known[0])
            if self._has_ranges:
                torch.cuda.nvtx.range_push(kernel.name)
            config, at = parameters.config, parameters.at
            if parameters.stream != stream or parameters.grid != grid:
                driver.put_grid(config, grid, stream)
                parameters.stream, parameters.grid = stream, grid
            (status,) = driver.launch_kernel(config, kernel.function, at, 0)
            if status:
                driver.launch_again(status, config, kernel.function, at, index)
            if self._has_ranges:
                torch.cuda.nvtx.range_pop()
        del memory

    def _add_memory(self, arguments: Any, scratch: _Scratch, stream: int) -> Tensor | None:
        """Store the addresses of the tile counter and of scratch memory. What the stream keeps is
        there in the next launch too. Other memory is returned: it belongs to the stream, so later
        users of it run after these kernels."""
        if self._counters:
            arguments.tile_counter = tile_counter(self._index, stream, self._counters)
        captures = is_capturing()
        arguments.stream, arguments.scratch = (None if captures else stream), scratch
        arguments.memory = None
        arguments.keeps_scratch = scratch.put_kept(arguments, stream)
        if arguments.keeps_scratch:
            return None
        return scratch.new(arguments) if captures else _own_memory(arguments, scratch)


_owners: deque[Any] = deque()
"""Arguments that own memory, in the order in which they got it."""


def _own_memory(arguments: Any, scratch: _Scratch) -> Tensor:
    """Allocate scratch memory, which the arguments own if it is small: the next launch with them is
    in the same stream, and comes after this one. Who launches has a reference of its own, as others
    may take the memory away from the arguments."""
    memory = scratch.new(arguments)
    if scratch.size <= MOST_OWNED:
        arguments.memory = memory
        _owners.append(arguments)
        if len(_owners) > MOST_OWNERS:
            _owners.popleft().memory = None
    return memory


class _Scratch:
    """The temporary memory of a recipe's kernels."""

    def __init__(
        self,
        sizes: Mapping[str, int],
        device_index: int,
        arguments: type[ctypes.Structure],
        *,
        may_be_kept: bool,
    ) -> None:
        self._index = device_index
        self._runs = _runs_of(arguments, sizes)
        self._may_be_kept = may_be_kept
        self._device = torch.device("cpu" if device_index == CPU else f"cuda:{device_index}")
        self._set(sizes)

    def _set(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        whole = (-(-size // ALIGNMENT) * ALIGNMENT for size in sizes.values())
        *starts_of, self.size = accumulate(whole, initial=0)
        starts = dict(zip(sizes, starts_of, strict=True))
        self._packs = [
            (struct.Struct(f"<{len(names)}Q").pack_into, offset, [starts[name] for name in names])
            for offset, names in self._runs
        ]

    def resized(self, sizes: Mapping[str, int]) -> _Scratch:
        """Return memory of other sizes for the same kernels."""
        if sizes == self._sizes:
            return self
        made = object.__new__(_Scratch)
        vars(made).update(vars(self))
        made._set(sizes)
        return made

    def put_kept(self, arguments: Any, stream: int) -> bool:
        """Store the addresses of memory that the stream keeps, unless it keeps too little. Says
        whether nothing has to be allocated."""
        address = kept_scratch(self._index, stream, self.size) if self._may_be_kept else 0
        if address:
            for pack, offset, starts in self._packs:
                pack(arguments, offset, *map(address.__add__, starts))
        return address > 0 or not self.size

    def new(self, arguments: Any) -> Tensor:
        """Allocate the memory on the current stream, and store its addresses."""
        memory = torch.empty(self.size, dtype=torch.uint8, device=self._device)
        address = memory.data_ptr()
        for pack, offset, starts in self._packs:
            pack(arguments, offset, *map(address.__add__, starts))
        return memory


class _LoadedKernel:
    """One kernel of a recipe with its tensor maps, whatever the lengths."""

    def __init__(
        self,
        step: Step,
        arguments: type[ctypes.Structure],
        device_index: int,
        problem: Problem | None,
    ) -> None:
        self.geometry = step.geometry
        self.starts_early = step.starts_early
        self.name = step.unit.name
        self.values = tuple(step.values.items())
        self.mapped = _addresses_in(arguments, tuple(step.maps))
        self.function: CUfunction | None = None
        self.maps: list[EncodedMaps] = []
        self._lengths: list[int | None] = []  # which of the sizes of a launch a map has
        for name, each in step.maps.items():
            of_k = name not in QUERY_ARGUMENTS
            total = problem and (problem.total_k if of_k else problem.total_q)
            # The last size of a tensor is that of sequences or pages; packed rows come before it.
            dim = len(each.dims) - 1 if total is None else 2
            self.maps.append(EncodedMaps(each, device_index, dim))
            self._lengths.append(None if each.of_all_lengths else int(of_k))
        self._device_index = device_index
        self._unit = step.unit
        self.known: OrderedDict[tuple[int, ...], _Maps] = OrderedDict()
        """Maps by the addresses and sizes of the tensors."""
        self.put_addresses = struct.Struct(f"<{len(step.maps)}Q").pack_into

    def load(self) -> None:
        function = load_unit(self._unit).function
        driver.ready_kernel(function, self._device_index, self.geometry.smem_bytes)
        self.function = function

    def encode(self, mapped: tuple[int, ...], sizes: tuple[int, ...]) -> _Maps:
        """Return the maps of tensors at other addresses, or of other sizes."""
        if len(self.known) >= MAX_ENCODED:
            self.known.popitem(last=False)
        encoded = [
            maps[address, sizes[length] if sizes and length is not None else maps.size]
            for maps, address, length in zip(self.maps, mapped, self._lengths, strict=False)
        ]
        self.known[mapped] = made = tuple([each[0] for each in encoded]), encoded
        return made


class _Parameters:
    """The parameters of a kernel's launches with one structure of arguments."""

    __slots__ = ("at", "config", "grid", "mapped", "maps", "pointers", "stream")

    def __init__(self, kernel: _LoadedKernel, arguments: ctypes.Structure) -> None:
        # The addresses of the tensor maps, and last of the arguments.
        self.pointers = (ctypes.c_uint64 * (len(kernel.maps) + 1))()
        self.pointers[-1] = addressof(arguments)
        self.at = addressof(self.pointers)
        self.mapped: tuple[int, ...] = ()  # the addresses and sizes of the tensors with maps
        self.maps: _Maps | None = None
        geometry = kernel.geometry
        self.config = driver.launch_config(
            geometry.block,
            geometry.smem_bytes,
            early=kernel.starts_early,
            cluster=geometry.cluster,
        )
        self.grid: Grid | None = None
        self.stream: int | None = None


def _runs_of(
    arguments: type[ctypes.Structure], names: Iterable[str]
) -> list[tuple[int, list[str]]]:
    """Return addresses in the arguments in runs without a gap: where each begins, and its names."""
    runs: list[tuple[int, list[str]]] = []
    for name in sorted(names, key=lambda name: int(getattr(arguments, name).offset)):
        offset = int(getattr(arguments, name).offset)
        if runs and runs[-1][0] + 8 * len(runs[-1][1]) == offset:
            runs[-1][1].append(name)
        else:
            runs.append((offset, [name]))
    return runs


def _addresses_in(
    arguments: type[ctypes.Structure], names: tuple[str, ...]
) -> Callable[[ctypes.Structure], tuple[int, ...]]:
    """Make a function that reads several addresses from the arguments at once."""
    first, pattern = _pattern_of(arguments, names)
    return struct.Struct(f"<{first}x{pattern[1:]}").unpack_from


def _pattern_of(arguments: type[ctypes.Structure], names: Sequence[str]) -> tuple[int, str]:
    """Return where the first of several addresses is in the arguments, and the pattern of them all
    from there on."""
    offsets = [getattr(arguments, name).offset for name in names]
    pattern, end = "<", offsets[0] if offsets else 0
    for offset in offsets:
        pattern, end = f"{pattern}{offset - end}xQ", offset + 8
    return offsets[0] if offsets else 0, pattern
