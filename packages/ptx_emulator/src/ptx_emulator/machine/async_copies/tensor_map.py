# SPDX-License-Identifier: Apache-2.0
"""The tensor a TMA instruction moves a box of, and the swizzle TMA and wgmma share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import EmulatorError

SWIZZLES = (0, 32, 64, 128)
CHUNK_BYTES = 16
_MAX_RANK = 5
_MAX_BOX = 256
_MAX_STEP = 8
_MAX_DIM = 1 << 32
_MAX_STRIDE = 1 << 40


def swizzle(address: NDArray[np.int64], span: int, base_offset: int = 0) -> NDArray[np.int64]:
    """Exchange the 16-byte chunks of rows of `span` bytes: address bits 4.. ^= bits 7.. .

    The row bits count from `base_offset`, where the repeating pattern does not start at a
    multiple of its own size.
    """
    if span == 0:
        return address
    row = (address >> 7) - base_offset
    return address ^ ((row & (span // CHUNK_BYTES - 1)) << 4)


@dataclass(frozen=True)
class TensorMap:
    """A tensor in global memory and the box that TMA moves, innermost dimension first.

    `strides` are the strides in bytes of all dimensions but the innermost, which is contiguous. A
    box has every `steps[i]`-th element of its extent along dimension i, by default every one.
    """

    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_bytes: int = 2
    swizzle: int = 128
    steps: tuple[int, ...] = ()
    dtype: str = ""  # of the elements, where it is known

    def __post_init__(self) -> None:
        if not self.steps:
            object.__setattr__(self, "steps", (1,) * self.rank)
        self._check_shape()
        self._check_layout()

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def row_bytes(self) -> int:
        """The bytes of a row of the box, which is the row pitch in shared memory."""
        return self.box[0] * self.element_bytes

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """The elements of the box along every dimension."""
        return tuple(-(-extent // step) for extent, step in zip(self.box, self.steps, strict=True))

    @cached_property
    def box_bytes(self) -> int:
        """Bytes of the whole box; a load completes as many, out of bounds or not."""
        return self.element_bytes * prod(self.extents)

    def _check_shape(self) -> None:
        if not 1 <= self.rank <= _MAX_RANK:
            raise EmulatorError(f"a tensor map has 1 to {_MAX_RANK} dimensions, not {self.rank}")
        if len(self.steps) != self.rank or not all(1 <= step <= _MAX_STEP for step in self.steps):
            raise EmulatorError(
                f"{self.rank} dimensions take as many steps of 1 to {_MAX_STEP}, not {self.steps}"
            )
        if self.steps[0] != 1:
            raise EmulatorError(
                f"the innermost dimension has step {self.steps[0]}; TMA moves it whole, take 1"
            )
        if len(self.box) != self.rank or len(self.strides) != self.rank - 1:
            raise EmulatorError(
                f"{self.rank} dimensions take as many box extents and one stride less; "
                f"there are {len(self.box)} and {len(self.strides)}"
            )
        if not all(1 <= dim <= _MAX_DIM for dim in self.dims):
            raise EmulatorError(f"tensor dimensions are 1 to 2^32, not {self.dims}")
        if not all(1 <= extent <= _MAX_BOX for extent in self.box):
            raise EmulatorError(f"box extents are 1 to {_MAX_BOX}, not {self.box}")

    def _check_layout(self) -> None:
        if self.element_bytes not in (1, 2, 4, 8):
            raise EmulatorError(f"elements have 1, 2, 4 or 8 bytes, not {self.element_bytes}")
        if self.swizzle not in SWIZZLES:
            raise EmulatorError(f"the swizzle is one of {SWIZZLES} bytes, not {self.swizzle}")
        if self.address % CHUNK_BYTES:
            raise EmulatorError(f"the tensor starts at {self.address:#x}, no multiple of 16")
        if any(s % CHUNK_BYTES or not 0 <= s < _MAX_STRIDE for s in self.strides):
            raise EmulatorError(f"strides are multiples of 16 bytes below 2^40, not {self.strides}")
        if self.row_bytes % CHUNK_BYTES:
            raise EmulatorError(
                f"a box row is a multiple of 16 bytes, not {self.row_bytes}; "
                f"change the first box extent, {self.box[0]}"
            )
        if self.swizzle and self.row_bytes != self.swizzle:
            raise EmulatorError(
                f"a box row of {self.row_bytes} bytes does not fill its {self.swizzle}-byte "
                "swizzle; take the swizzle of its width (narrower rows, which the hardware spreads "
                "out, are not emulated)"
            )
