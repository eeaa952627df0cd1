# SPDX-License-Identifier: Apache-2.0
"""Matrix descriptors: where the operands of wgmmas lie in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.async_copies.tensor_map import CHUNK_BYTES, swizzle
from ptx_emulator.machine.lanes import SHARED_BASE, Selection
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.memory.shared import SharedMemory

DEPTH = 16  # of 16-bit elements
MOST_LAYOUTS = 256  # that are remembered
PATTERN_BYTES = 1024  # the longest period of a swizzle
_SPAN = {0: 0, 1: 128, 2: 64, 3: 32}
_RESERVED = 0x3FF1C000C000C000  # bits that belong to no field


@dataclass(frozen=True)
class Descriptor:
    """Where a wgmma operand lies in shared memory; offsets and addresses are in bytes."""

    start: int
    leading: int
    stride: int
    base_offset: int
    span: int

    @classmethod
    def decode(cls, bits: int) -> Descriptor:
        return cls(
            start=(bits & 0x3FFF) << 4,
            leading=(bits >> 16 & 0x3FFF) << 4,
            stride=(bits >> 32 & 0x3FFF) << 4,
            base_offset=bits >> 49 & 7,
            span=_SPAN[bits >> 62 & 3],
        )

    @property
    def pattern_row(self) -> int:
        """Row of the swizzle pattern the operand starts in; hardware takes it to be the first."""
        return ((self.start >> 7) - self.base_offset) & (max(self.span, 16) // CHUNK_BYTES - 1)

    def chunks(self, rows: int, transposed: bool) -> NDArray[np.int64]:
        """Shared addresses of the 16-byte chunks of an operand that is 32 bytes deep.

        K-major: [rows][2], a chunk holding half the steps of k. Transposed (MN-major), of 16-bit
        elements: [rows / 8][16], a chunk holding 8 rows.
        """
        if transposed:
            row = np.arange(0, rows, 8)[:, None]
            k = np.arange(DEPTH)[None]
            if self.span:
                wide = self.span // 2
                offset = row % wide * 2 + row // wide * self.leading
                offset = offset + k % 8 * self.span + k // 8 * self.stride
            else:
                offset = row // 8 * self.stride + k % 8 * CHUNK_BYTES + k // 8 * self.leading
        else:
            row = np.arange(rows)[:, None]
            half = np.arange(2)[None]
            pitch, next_half = (self.span, CHUNK_BYTES) if self.span else (16, self.leading)
            offset = row % 8 * pitch + row // 8 * self.stride + half * next_half
        return swizzle(self.start + offset, self.span, self.base_offset).ravel()


class Mistake(NamedTuple):
    """What is wrong with a descriptor: the address, and the instruction that wrote there."""

    detail: str
    address: int | None = None
    other: int | None = None
    kind: str = "wgmma-descriptor"


class Look(NamedTuple):
    """The addresses of the chunks of an operand, unless they leave shared memory."""

    addresses: NDArray[np.int64] | None
    mistakes: list[Mistake]


class Descriptors:
    """The descriptors of a launch. Those without a mistake are looked at once."""

    def __init__(self, launch: Launch, shared: SharedMemory) -> None:
        self._launch = launch
        self._shared = shared
        self._known: dict[tuple[int, int, bool], Look] = {}

    def look(self, bits: int, rows: int, transposed: bool, sel: Selection) -> Look:
        """The addresses, with all that may be wrong with them."""
        known = self._known.get((bits, rows, transposed))
        if known is not None:
            return known
        descriptor = Descriptor.decode(bits)
        mistakes = list(_mistakes(bits, descriptor, rows, transposed))
        whole = descriptor.start - descriptor.start % PATTERN_BYTES
        near = replace(descriptor, start=descriptor.start - whole)
        addresses: NDArray[np.int64] | None = _layout(near, rows, transposed) + whole
        assert addresses is not None
        first, last = int(addresses.min()), int(addresses.max()) + CHUNK_BYTES
        limit = self._launch.shared_limit
        if first < SHARED_BASE or last > SHARED_BASE + limit:
            detail = (
                f"wgmma operand covers shared bytes {first - SHARED_BASE} to {last - SHARED_BASE} "
                f"of {limit}"
            )
            mistakes.append(Mistake(detail, first, kind="shared-out-of-bounds"))
            addresses = None
        elif self._launch.checks:
            mistakes += self._compare(bits, descriptor, addresses, transposed, sel)
        look = Look(addresses, mistakes)
        if not mistakes:
            self._known[bits, rows, transposed] = look
        return look

    def _compare(
        self,
        bits: int,
        descriptor: Descriptor,
        addresses: NDArray[np.int64],
        transposed: bool,
        sel: Selection,
    ) -> Iterator[Mistake]:
        """Compare a descriptor with the boxes that lie there now, if tensor copies brought them."""
        for address in (int(addresses[0]), int(addresses[-1])):
            load = self._shared.load_of((address + int(sel.shared_base[0])) // CHUNK_BYTES)
            layouts = self._shared.layouts.get(load, set()) if load is not None else set()
            if len(layouts) != 1:
                continue
            ((span, row),) = layouts
            detail = f"descriptor {bits:#x} has"
            if span != descriptor.span:
                detail += f" {_swizzle_name(descriptor.span)}, and TMA wrote the tile with"
                detail += f" {_swizzle_name(span)}"
            elif span == 0 and row != CHUNK_BYTES and not transposed:
                detail += f" no swizzle, for rows of 16 bytes; TMA wrote rows of {row} bytes"
            elif span and transposed and descriptor.stride % (8 * span):
                detail += f" a stride of {descriptor.stride} bytes, and TMA wrote groups of 8 rows"
                detail += f" {8 * span} bytes apart"
            else:
                continue
            yield Mistake(detail, address, load)
            return


def _mistakes(bits: int, descriptor: Descriptor, rows: int, transposed: bool) -> Iterator[Mistake]:
    """What is wrong with a descriptor, whatever it describes."""
    if bits & _RESERVED:
        yield Mistake(f"descriptor {bits:#x} has reserved bits set: {bits & _RESERVED:#x}")
    if descriptor.pattern_row:
        yield Mistake(
            f"descriptor {bits:#x} starts at shared address {descriptor.start:#x}, row "
            f"{descriptor.pattern_row} of the {descriptor.span}-byte swizzle pattern; the base "
            f"offset must be {descriptor.start >> 7 & 7} or the operand aligned to "
            f"{descriptor.span * 8} bytes"
        )
    if not transposed and rows > 8 and 0 < descriptor.stride < 8 * descriptor.span:
        detail = f"descriptor {bits:#x} has a stride of {descriptor.stride} bytes, and 8 rows"
        yield Mistake(f"{detail} of its {descriptor.span}-byte swizzle take {8 * descriptor.span}")


@lru_cache(maxsize=MOST_LAYOUTS)
def _layout(near: Descriptor, rows: int, transposed: bool) -> NDArray[np.int64]:
    return near.chunks(rows, transposed)


def _swizzle_name(span: int) -> str:
    return f"a {span}-byte swizzle" if span else "no swizzle"
