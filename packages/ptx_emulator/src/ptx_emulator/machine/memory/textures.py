# SPDX-License-Identifier: Apache-2.0
"""Textures: arrays that kernels read at coordinates, through an address mode and a filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import EmulatorError, UnsupportedError, shown
from ptx_emulator.machine.access import Mask
from ptx_emulator.machine.lanes import Selection
from ptx_emulator.machine.launch.launch import Launch

ADDRESS_MODES = ("clamp", "border", "wrap", "mirror")
STEPS = 256  # of a weight between two texels: hardware has 8 bits for it
FARTHEST = 1 << 30  # that a coordinate is told apart


@dataclass(frozen=True, eq=False)
class Texture:
    """What a texture object reads: an array whose last coordinate is x, before the channels.

    - `axes`: how many axes are coordinates. One axis more, of 1, 2 or 4, holds the channels.
    - `layered`: whether the first axis, before the coordinates, counts layers.
    - `address`: clamp, border, wrap or mirror. The last two clamp unless `normalized`, as on a GPU.
    - `linear`: whether the texels around a place are weighed; else the one it lies in is read.
    - `normalized`: whether coordinates go from 0 to 1 along an axis.
    - `as_floats`: whether integers become floats up to 1, as by cudaReadModeNormalizedFloat.
    """

    array: NDArray[Any]
    axes: int = 2
    layered: bool = False
    address: str = "clamp"
    linear: bool = False
    normalized: bool = False
    as_floats: bool = False

    def __post_init__(self) -> None:
        array, front = np.asarray(self.array), self.axes + self.layered
        if self.axes not in (1, 2, 3) or array.shape[front:] not in ((), (1,), (2,), (4,)):
            raise UnsupportedError(
                f"a texture of {self.axes} axes has an array of shape {array.shape}; pass one to"
                " three axes, with layers in front if layered, and at most 1, 2 or 4 channels"
            )
        if array.ndim < front or 0 in array.shape:
            raise UnsupportedError(
                f"a texture has {front} axes, and its array the shape {array.shape}"
            )
        if array.dtype.kind not in "iuf" or array.dtype.itemsize > 4:
            raise UnsupportedError(
                f"a texture has elements of {array.dtype}; pass numbers of at most 4 bytes"
            )
        if self.address not in ADDRESS_MODES:
            raise UnsupportedError(
                f"address is {shown(self.address)}; pass one of {', '.join(ADDRESS_MODES)}"
            )
        if self.linear and not self.gives_floats:
            raise UnsupportedError("a linear filter weighs floats; pass as_floats=True or floats")

    @property
    def geometry(self) -> str:
        """As the instruction that reads it says."""
        return f"{'a' if self.layered else ''}{self.axes}d"

    @property
    def gives_floats(self) -> bool:
        return self.as_floats or np.asarray(self.array).dtype.kind == "f"

    @cached_property
    def _texels(self) -> NDArray[Any]:
        """The array as [layer][..., y, x][channel], of what a fetch gives."""
        array = np.asarray(self.array)
        front = self.axes + self.layered
        texels = array.reshape(*((1,) * (not self.layered)), *array.shape[:front], -1)
        if self.gives_floats and array.dtype.kind != "f":
            most = np.iinfo(array.dtype).max
            parts: NDArray[Any] = np.maximum(texels.astype(np.float32) / np.float32(most), -1)
            return parts
        wide = {"f": np.float32, "i": np.int32, "u": np.uint32}[array.dtype.kind]
        return texels.astype(wide)

    def fetch(
        self, layer: NDArray[Any] | None, coordinates: Sequence[NDArray[Any]]
    ) -> NDArray[np.uint32]:
        """The bits of four channels at places, x first; channels that it lacks are 0."""
        layers, *sizes = self._texels.shape[:-1]
        chosen = np.zeros(len(coordinates[0]), np.int64)
        if layer is not None:
            chosen = np.minimum(layer.astype(np.int64), layers - 1)
        found = [
            self._along(given, size) for given, size in zip(coordinates[::-1], sizes, strict=True)
        ]
        total: NDArray[Any] = np.zeros((len(chosen), self._texels.shape[-1]), self._texels.dtype)
        for corner in product(*found):
            texel = self._texels[(chosen, *(place for place, _, _ in corner))]
            texel = np.where(np.all([inside for _, inside, _ in corner], 0)[:, None], texel, 0)
            if self.linear:
                weight = np.prod([weight for _, _, weight in corner], 0)
                texel = texel * weight.astype(np.float32)[:, None]
            total = total + texel.astype(total.dtype)
        bits = np.zeros((4, len(chosen)), np.uint32)
        bits[: total.shape[1]] = np.ascontiguousarray(total).view(np.uint32).T
        return bits

    def _along(self, given: NDArray[Any], size: int) -> list[tuple[Any, Any, Any]]:
        """The texels of one axis: their numbers, whether they are there, and their weights."""
        if given.dtype.kind != "f":  # numbers of texels
            number = given.astype(np.int64)
            return [(np.clip(number, 0, size - 1), (number >= 0) & (number < size), 1)]
        place = np.clip(np.nan_to_num(given), -FARTHEST, FARTHEST)
        if self.normalized:
            place = place * np.float32(size)
        if not self.linear:
            return [(*self._addressed(np.floor(place).astype(np.int64), size), 1)]
        place = place.astype(np.float64) - 0.5
        first = np.floor(place)
        weight = np.rint((place - first) * STEPS) / STEPS
        number = first.astype(np.int64)
        return [
            (*self._addressed(number, size), 1 - weight),
            (*self._addressed(number + 1, size), weight),
        ]

    def _addressed(self, number: NDArray[np.int64], size: int) -> tuple[Any, Any]:
        """The texel that stands for a number, and whether one does."""
        inside = (number >= 0) & (number < size)
        if self.normalized and self.address == "wrap":
            return number % size, np.ones_like(inside)
        if self.normalized and self.address == "mirror":
            folded = number % (2 * size)
            return np.minimum(folded, 2 * size - 1 - folded), np.ones_like(inside)
        if self.address != "border":
            inside = np.ones_like(inside)
        return np.clip(number, 0, size - 1), inside


class TextureUnit:
    """What reads textures, by the number of their objects."""

    def __init__(self, launch: Launch, textures: Mapping[int, Texture]) -> None:
        self._launch = launch
        self._textures = textures

    def fetch(
        self,
        s: Selection,
        handles: NDArray[np.uint64],
        geometry: str,
        layer: NDArray[Any] | None,
        coordinates: Sequence[NDArray[Any]],
        mask: Mask,
        pc: int,
    ) -> NDArray[np.uint32]:
        """Four words a lane."""
        words = np.zeros((4, s.count), np.uint32)
        lanes = np.arange(s.count) if mask is None else np.flatnonzero(mask)
        for handle in np.unique(handles[lanes]).tolist():
            texture = self._texture(handle, geometry, pc)
            mine = lanes[handles[lanes] == handle]
            given = [coordinate[mine] for coordinate in coordinates]
            words[:, mine] = texture.fetch(None if layer is None else layer[mine], given)
        return words

    def _texture(self, handle: int, geometry: str, pc: int) -> Texture:
        texture = self._textures.get(handle)
        if texture is not None and texture.geometry == geometry:
            return texture
        place = self._launch.program.kernel.instructions[pc].place
        there = "no texture object" if texture is None else f"a texture of {texture.geometry}"
        raise EmulatorError(f"{place}: tex.{geometry} reads {handle:#x}, which is {there}")
