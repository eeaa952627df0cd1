# SPDX-License-Identifier: Apache-2.0
"""The variants of the slots of a Hopper backward kernel. Members are ordered, so that configs can
be sorted."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from flash_attention.compile.binding import Variant

FOLDER = "sm90/backward"
GROUP_HEADS = 8  # heads of q whose tiles run side by side, in groups


class Slot(IntEnum):
    """A variant of a slot, whose C++ type has the name of the member."""

    @property
    def word(self) -> str:
        """The variant in a short form."""
        return self.name.lower()

    @property
    def variant(self) -> Variant:
        """The C++ type that the variant binds."""
        slot = type(self).__name__
        folder = "".join(f"_{c.lower()}" if c.isupper() else c for c in slot).removeprefix("_")
        return Variant(slot, f"{FOLDER}/{folder}", self.name.title().replace("_", ""))


def bind(config: Any, field: str) -> Variant | None:
    """Bind the C++ type of a member. A kernel that is split has no slot for a schedule."""
    member: Slot = getattr(config, field)
    return None if member is Schedule.SPLIT else member.variant


class QueryGradient(Slot):
    """How dQ = dS K is computed and added up over the tiles of keys.

    The key warpgroups compute it, and add it to float32 sums from registers (ATOMIC) or by bulk
    copies (STAGED), or a warpgroup of its own does (OWN_WARPGROUP). With WORKSPACE dS is stored,
    and another kernel computes dQ, always in the same order. With ORDERED a warpgroup of its own
    computes dQ, and tiles take turns: the first stores its share, and the last stores dQ. With NONE
    there is no dQ.
    """

    NONE = 0
    ATOMIC = 1
    STAGED = 2
    OWN_WARPGROUP = 3
    WORKSPACE = 4
    ORDERED = 5


class Derivative(Slot):
    """How dS = P (dP - delta) is computed: with P in float32 (EXACT), with the 16-bit P of the
    product (ROUNDED), or as a product of 16-bit pairs (PAIRS)."""

    EXACT = 0
    ROUNDED = 1
    PAIRS = 2


class Schedule(Slot):
    """The order of a key warpgroup's products: one at a time (SERIAL), two at a time (PAIRED), or
    two at a time with arithmetic under the second of them (IN_PLACE). With SPLIT there are no key
    warpgroups: one warpgroup computes S and dP, one dV and one dK."""

    SERIAL = 0
    PAIRED = 1
    IN_PLACE = 2
    SPLIT = 3


class TileOrder(Slot):
    """Which CTA computes which tile of keys.

    ONE_EACH launches one CTA per tile, head after head. GROUPED does so with several heads side by
    side, the first keys first. DYNAMIC launches as many CTAs as are resident at a time, and each
    takes the next tile of the grouped order from an atomic counter.
    """

    ONE_EACH = 0
    GROUPED = 1
    DYNAMIC = 2
