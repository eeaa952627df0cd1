# SPDX-License-Identifier: Apache-2.0
"""Recipe: how a family answers a problem, before any tensor, device or driver comes in."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from flash_attention.arch import Arch
from flash_attention.call.features import Features
from flash_attention.compile.unit import Unit


@dataclass(frozen=True)
class Geometry:
    """The grid, threads of a block, bytes of dynamic shared memory."""

    grid: tuple[int, int, int]
    block: int
    smem_bytes: int = 0


@dataclass(frozen=True)
class MapDescription:
    """What TMA is told of a tensor, wherever it lies, and of its box; innermost dimension first.

    `strides` are the bytes of all dimensions but the innermost, which is dense. A row of a
    swizzled box is as wide as the swizzle.
    """

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int  # bytes
    dtype: torch.dtype
    promotion: int = 0  # bytes that a load brings into L2 at a time; 0: what it asks for


@dataclass(frozen=True)
class Step:
    """One kernel of a recipe. Its parameters are the maps in their order, and the arguments."""

    unit: Unit
    geometry: Geometry
    maps: Mapping[str, MapDescription] = field(default_factory=dict)  # by the tensor's argument
    starts_early: bool = False  # it waits by itself for the kernel before it (griddepcontrol)


Split = Any
"""How a family cuts the keys of short queries; only the family that made it looks into it."""


@dataclass(frozen=True)
class Setting:
    """What a recipe depends on besides the config, the problem and the tensors' layout."""

    arch: Arch
    num_sms: int
    return_lse: bool = False
    split: Split = None  # None: every row visits its keys in one go


@dataclass(frozen=True)
class Recipe:
    """The kernels of a call, their arguments but for addresses, and the memory they share.

    `arguments` is one structure that every kernel takes. `scratch` are bytes that the call needs
    on the way, by the argument that takes their address.
    """

    features: Features
    steps: tuple[Step, ...]
    arguments: ctypes.Structure
    scratch: Mapping[str, int] = field(default_factory=dict)
    counts_tiles: bool = False  # CTAs take tiles from a counter, the argument tile_counter
    tiles: int = 0  # of query rows; of packed queries no fewer than there are
    chunks: int = 0  # that the keys of all tiles are cut into; 0: they are not
