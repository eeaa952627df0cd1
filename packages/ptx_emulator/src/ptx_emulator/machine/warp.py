# SPDX-License-Identifier: Apache-2.0
"""What lanes of a warp exchange: shuffles, votes, reductions, elections."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Mask, alike
from ptx_emulator.machine.lanes import WARP_SIZE, Bools, Selection
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.storage.storage import POISON

Words = NDArray[np.uint32]

REDUCTIONS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


ALL = np.uint32(0xFFFFFFFF)
MOST_ROUTES = 256  # that are remembered


class _Route(NamedTuple):
    """Whom the lanes of a selection ask in a shuffle, and whether these are in their segments."""

    source: NDArray[np.int64]  # among the lanes of the selection's warps
    inside: Words


class WarpUnit:
    """The exchanges of the warps of a selection."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._routes: dict[tuple[Selection, str, bytes, bytes], _Route] = {}

    def check_members(self, s: Selection, members: Words, mask: Mask, pc: int) -> None:
        """Every lane names itself, and those it names execute the instruction with it, or have
        ended."""
        launch = self._launch
        everyone = s.whole_warps and mask is None and members[0] == ALL and alike(members)
        if everyone or not launch.checks:
            return
        active = np.ones(s.count, bool) if mask is None else mask
        place = np.searchsorted(s.warps, s.warp_id)
        bits = (1 << s.lane).astype(np.int64)
        present = np.bincount(place, bits * active, s.num_warps).astype(np.int64)
        gone = launch.gone.reshape(-1, WARP_SIZE)[s.warps] @ (1 << np.arange(WARP_SIZE))
        named = members.astype(np.int64)
        absent = named & ~(present | gone)[place]
        report = launch.findings.report
        detail = "the lane is not in the membermask that it gives"
        report("membermask", detail, pc, s, active & (named & bits == 0))
        bad = active & (absent != 0)
        first = int(bad.argmax())
        detail = f"the membermask {int(named[first]):#x} names lanes that do not take part"
        report("membermask", f"{detail}: {int(absent[first]):#x}", pc, s, bad)

    def shuffle(
        self, s: Selection, mode: str, value: Words, lane: Words, clamp: Words
    ) -> tuple[Words, Words]:
        """What each lane receives, and whether the lane it asked was in its segment.

        A lane that does not take part gives nothing: who asks it receives poison.
        """
        key = s, mode, lane.tobytes(), clamp.tobytes()
        route = self._routes.get(key)
        if route is None:
            if len(self._routes) == MOST_ROUTES:
                self._routes.clear()
            route = self._routes[key] = self._route(s, mode, lane, clamp)
        given = value
        if not s.whole_warps:
            given = np.full(len(s.warps) * WARP_SIZE, POISON)
            given[self._first_lanes(s) + s.lane] = value
        return given[route.source], route.inside

    def _route(self, s: Selection, mode: str, lane: Words, clamp: Words) -> _Route:
        first = self._first_lanes(s)
        asked, bounds = lane.astype(np.int64), clamp.astype(np.int64)
        segment = (bounds >> 8) & 31
        last = (s.lane & segment) | (bounds & 31 & ~segment)
        if mode == "up":
            source = s.lane - (asked & 31)
            inside = source >= last
        else:
            if mode == "down":
                source = s.lane + (asked & 31)
            elif mode == "bfly":
                source = s.lane ^ (asked & 31)
            else:
                source = (s.lane & segment) | (asked & 31 & ~segment)
            inside = source <= last
        return _Route(first + np.where(inside, source, s.lane), inside.astype(np.uint32))

    def vote(self, s: Selection, mode: str, value: Bools, members: Words) -> NDArray[Any]:
        if mode in ("any", "all") and s.whole_warps and alike(members):
            votes = value.reshape(-1, WARP_SIZE)
            outcome = votes.any(axis=1) if mode == "any" else votes.all(axis=1)
            return outcome.repeat(WARP_SIZE)
        inverse, count = self._groups(s, members)
        yes = np.bincount(inverse, value, count)
        lanes = np.bincount(inverse, minlength=count)
        if mode == "ballot":
            ballots = np.bincount(inverse, value * (1 << s.lane), count)
            result: NDArray[Any] = ballots.astype(np.uint32)
        elif mode == "any":
            result = yes > 0
        elif mode == "all":
            result = yes == lanes
        else:
            result = (yes == 0) | (yes == lanes)
        return result[inverse]

    def reduce(
        self, s: Selection, operation: str, value: NDArray[Any], members: Words
    ) -> NDArray[Any]:
        inverse, _ = self._groups(s, members)
        _, first = np.unique(inverse, return_index=True)
        result = value[first].copy()
        rest = np.ones(s.count, bool)
        rest[first] = False
        REDUCTIONS[operation].at(result, inverse[rest], value[rest])
        return result[inverse]

    def match(
        self, s: Selection, mode: str, value: NDArray[Any], members: Words
    ) -> tuple[Words, Words]:
        """The lanes with the same value; or all members if all have it, and whether they do."""
        group, count = self._groups(s, members)
        pairs = np.stack((group, value.astype(np.uint64).view(np.int64)), axis=1)
        distinct, alike = np.unique(pairs, axis=0, return_inverse=True)
        alike = alike.reshape(-1)
        bits = (1 << s.lane).astype(np.float64)
        lanes = np.bincount(alike, bits, len(distinct)).astype(np.uint32)[alike]
        everyone = np.bincount(group, bits, count).astype(np.uint32)[group]
        agreed = lanes == everyone
        if mode == "all":
            lanes = np.where(agreed, lanes, np.uint32(0))
        return lanes, agreed.astype(np.uint32)

    def elect(self, s: Selection) -> tuple[Words, Words]:
        """The lowest lane of every warp, known to all of them."""
        inverse, _ = self._warp_index(s)
        first = np.searchsorted(inverse, np.arange(len(s.warps)))
        leader = s.lane[first][inverse]
        return leader.astype(np.uint32), (s.lane == leader).astype(np.uint32)

    def active_mask(self, s: Selection) -> Words:
        inverse, count = self._warp_index(s)
        masks = np.bincount(inverse, (1 << s.lane).astype(np.float64), count)
        return masks.astype(np.uint32)[inverse]

    def _first_lanes(self, s: Selection) -> NDArray[np.int64]:
        """By lane, where its warp begins among the warps of the selection."""
        known = s.memo.get("first lanes")
        if not isinstance(known, np.ndarray):
            known = s.memo["first lanes"] = np.searchsorted(s.warps, s.warp_id) * WARP_SIZE
        return known

    def _warp_index(self, s: Selection) -> tuple[NDArray[np.intp], int]:
        return self._first_lanes(s) // WARP_SIZE, len(s.warps)

    def _groups(self, s: Selection, members: Words) -> tuple[NDArray[np.intp], int]:
        """Which lanes of a warp act together: those that name the same members."""
        if alike(members):
            return self._warp_index(s)
        distinct, inverse = np.unique(s.warp_id << 32 | members, return_inverse=True)
        return inverse, len(distinct)
