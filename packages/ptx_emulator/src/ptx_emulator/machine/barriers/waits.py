# SPDX-License-Identifier: Apache-2.0
"""Which lanes meet at which mbarriers, grouped: most warps of a CTA name the same one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Mask, alike
from ptx_emulator.machine.lanes import Ints, Selection

Array = NDArray[Any]

FEW = 64  # lanes that are grouped faster one by one


class Wait(NamedTuple):
    """Lanes that wait for phases, each by CTA, address and parity; `which` is that of each lane."""

    sel: Selection
    address: Array
    parity: Array
    phases: list[tuple[int, int, int]]
    which: Ints

    @classmethod
    def of(cls, sel: Selection, address: Array, parity: Array) -> Wait:
        if alike(address) and alike(parity):
            first = int(address[0]), int(parity[0]) & 1
            ctas, which = _ctas_of(sel)
            return cls(sel, address, parity, [(cta, *first) for cta in ctas], which)
        key = sel.cta.astype(np.int64) << 33 | address.astype(np.int64) << 1
        key |= parity.astype(np.int64) & 1
        distinct, which = np.unique(key, return_inverse=True)
        phases = [(k >> 33, k >> 1 & 0xFFFFFFFF, k & 1) for k in distinct.tolist()]
        return cls(sel, address, parity, phases, which)


def _ctas_of(sel: Selection) -> tuple[list[int], Ints]:
    """The CTAs of a selection, and which of them each lane belongs to."""
    known: Any = sel.memo.get("ctas")
    if known is None:
        ctas, which = np.unique(sel.cta, return_inverse=True)
        known = sel.memo["ctas"] = ctas.tolist(), which
    found: tuple[list[int], Ints] = known
    return found


def warps_by_cta(sel: Selection) -> list[tuple[int, Ints]]:
    """The warps of a selection of whole ones, by CTA."""
    known: Any = sel.memo.get("warps by CTA")
    if known is None:
        ctas, which = _ctas_of(sel)
        places = [np.flatnonzero(which == number)[::32] for number in range(len(ctas))]
        known = [(cta, sel.warp_id[lanes]) for cta, lanes in zip(ctas, places, strict=True)]
        sel.memo["warps by CTA"] = known
    found: list[tuple[int, Ints]] = known
    return found


def by_warp_and_address(sel: Selection, addr: Array, mask: Mask) -> list[Array]:
    """The executing lanes, grouped by warp and address."""
    lanes = np.arange(sel.count) if mask is None else np.flatnonzero(mask)
    if len(lanes) == 0:
        return []
    key = sel.warp_id[lanes] << 32 | addr[lanes].astype(np.int64)
    if len(lanes) <= FEW:
        alike: dict[int, list[int]] = {}
        for lane, place in zip(lanes.tolist(), key.tolist(), strict=True):
            alike.setdefault(place, []).append(lane)
        return [np.array(alike[place]) for place in sorted(alike)]
    order = np.argsort(key, kind="stable")
    bounds = np.flatnonzero(np.diff(key[order])) + 1
    return np.split(lanes[order], bounds)
