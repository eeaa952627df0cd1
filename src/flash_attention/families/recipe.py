# SPDX-License-Identifier: Apache-2.0
"""Recipe: how a family runs a problem, independent of tensors, devices and the driver."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from flash_attention.arch import Arch
from flash_attention.call.call import Call
from flash_attention.call.features import Features
from flash_attention.call.problem import Problem
from flash_attention.compile.unit import Unit
from flash_attention.errors import UnsupportedError

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Geometry:
    """The grid, the threads of a CTA, its bytes of dynamic shared memory, and the CTAs of a cluster
    (None: the kernel has no clusters, or says itself how large they are)."""

    grid: Grid
    block: int
    smem_bytes: int = 0
    cluster: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class MapDescription:
    """A tensor map without the tensor's address: the tensor and its box, innermost dimension first.

    `strides` are the strides in bytes of all dimensions but the innermost, which is contiguous. A
    row of a swizzled box is as wide as the swizzle. A box has every `steps[i]`-th element of its
    extent along dimension i, by default every one. A map `of_all_lengths` has room for every number
    of rows, because the kernel itself stays inside of the tensor.
    """

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int  # bytes
    dtype: torch.dtype
    promotion: int = 0  # L2 promotion in bytes; 0 means none
    steps: tuple[int, ...] = ()
    of_all_lengths: bool = False


@dataclass(frozen=True)
class Step:
    """One kernel of a recipe. Its parameters are the tensor maps in order, then the arguments."""

    unit: Unit
    geometry: Geometry
    maps: Mapping[str, MapDescription] = field(default_factory=dict)  # by the tensor's argument
    starts_early: bool = False  # it waits for the previous kernel itself (griddepcontrol)
    values: Mapping[str, int] = field(default_factory=dict)  # arguments that only this kernel has


class Resized(NamedTuple):
    """What differs in a recipe for other lengths, besides the lengths in its arguments and tensor
    maps: the grids of its steps, and its scratch memory unless that has the same size."""

    grids: tuple[Grid, ...]
    scratch: Mapping[str, int] | None = None


Resize = Callable[[Problem], Resized | None]
"""Resizes a recipe for a problem that differs in lengths alone: in the rows of packed tensors, the
sequences, the pages, the block table, and the longest sequences. There is something to compute. The
kernels, the counters, and the arguments besides lengths stay as they are. The result is that of a
recipe for the problem; None if other kernels suit these lengths better. UnsupportedError says that
the kernels do not run so many."""

WORKSPACE_MIB = 2048  # of a backward pass, unless the environment says more or less
WORKSPACE_VARIABLE = "FLASH_ATTENTION_WORKSPACE_MIB"
AnyKvSplits = Any
"""How the keys are split (split-KV). Only the family that made it reads it."""
Device = int | str
"""The index of a CUDA device of torch, or the name of a GPU that this machine need not have."""
NO_DEVICE = -1  # for emulated kernels, and for explanations without a GPU


def workspace_bytes() -> int:
    """Return the largest memory that parts of a backward pass share, by default 2 GiB."""
    value = os.environ.get(WORKSPACE_VARIABLE) or str(WORKSPACE_MIB)
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise UnsupportedError(
            f"{WORKSPACE_VARIABLE} is {value!r}; allowed is a whole number of MiB, at least 1"
        )
    return int(value) << 20


@dataclass(frozen=True)
class Setting:
    """Where and how a problem runs: what a recipe depends on besides the config, the problem and
    the tensors' strides."""

    arch: Arch
    num_sms: int
    return_lse: bool = False
    split: AnyKvSplits = None  # None means no split-KV
    device: Device = NO_DEVICE  # whose tables choose the config

    @property
    def workspace_bytes(self) -> int:
        """The largest memory that parts of a backward pass share."""
        return workspace_bytes()


@dataclass(frozen=True)
class Recipe:
    """The kernels of a call, their arguments without addresses, and their scratch memory.

    All kernels take the same `arguments`, but for the `values` of a step. `scratch` is the bytes of
    temporary memory of each argument that holds its address.
    """

    features: Features
    steps: tuple[Step, ...]
    arguments: ctypes.Structure
    scratch: Mapping[str, int] = field(default_factory=dict)
    counts_tiles: bool = False  # CTAs take tiles from the counter in tile_counter
    tiles: int = 0  # tiles of query rows; an upper bound for packed sequences
    main: int = 0  # which of the steps is the kernel of the config
    num_splits: int = 0  # KV splits of all tiles; 0 if the keys are not split
    arrivals: int = 0  # counters in tile_counter of the splits of a tile that are done
    resize: Resize | None = None  # None: other lengths need a recipe of their own
    alone: bool = False  # no kernel reads what another one leaves in scratch memory
    refusal: Callable[[Call], str | None] | None = None
    """Says why kernels do not run a call with the key of the problem, because of its addresses."""

    @property
    def counters(self) -> int:
        """How many integers tile_counter has."""
        return max(2 * self.counts_tiles, self.arrivals)

    @property
    def may_keep_scratch(self) -> bool:
        """Whether the kernels find what they need in memory that others use in between."""
        early = any(step.starts_early for step in self.steps)
        return not early and (self.alone or len(self.steps) == 1)

    def followed_by(self, other: Recipe, resize: Resize | None) -> Recipe:
        """Return the recipe of the kernels of both, which share the sequences of a call. They run
        one after the other, so they share scratch memory and counters."""
        assert isinstance(self.arguments, type(other.arguments))
        return replace(
            self,
            steps=self.steps + other.steps,
            scratch=larger(self.scratch, other.scratch),
            arrivals=max(self.arrivals, other.arrivals),
            alone=self.may_keep_scratch and other.may_keep_scratch,
            resize=resize,
        )


def larger(sizes: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    """Return memory that has room for both."""
    return {name: max(sizes.get(name, 0), others.get(name, 0)) for name in {**sizes, **others}}
