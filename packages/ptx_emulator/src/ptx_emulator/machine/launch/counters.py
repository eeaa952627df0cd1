# SPDX-License-Identifier: Apache-2.0
"""Exact counts of a run: instructions, shared-memory wavefronts, global-memory sectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Access, Mask
from ptx_emulator.machine.lanes import WARP_SIZE, Selection
from ptx_emulator.native import Native
from ptx_emulator.program.program import Program

WAVEFRONT_BYTES = 128
BANKS = 32
SECTOR_BYTES = 32
SECTOR_START = np.uint64(2**64 - SECTOR_BYTES)  # the bits of an address that name its sector
LAST_ADDRESS = np.uint64(2**64 - 1)
NOWHERE = np.int64(-(2**63))  # lies before all addresses

Ints = NDArray[np.int64]
Pattern = tuple[int, bytes, bytes | None]  # bytes of an access, relative addresses, active lanes


@dataclass
class SharedSite:
    """An instruction on shared memory: warp requests, wavefronts, and the fewest possible ones."""

    requests: int = 0
    wavefronts: int = 0
    ideal: int = 0

    @property
    def conflicts(self) -> int:
        return self.wavefronts - self.ideal


@dataclass
class GlobalSite:
    """An instruction on global memory: warp requests, sectors, the fewest possible ones, bytes."""

    requests: int = 0
    sectors: int = 0
    ideal_sectors: int = 0
    bytes: int = 0


class Counters:
    """Counts of all CTAs of a launch."""

    def __init__(self, program: Program, native: Native | None = None) -> None:
        self._program = program
        self._native = native
        self.blocks: Counter[int] = Counter()
        instructions = program.num_instructions
        # What a site has, by instruction, and how many accesses were counted.
        self.shared_counts: Ints = np.zeros((instructions, 4), np.int64)
        self.global_counts: Ints = np.zeros((instructions, 5), np.int64)
        self.tensor_operations = 0
        self._barrier_waits = 0
        self._bank_patterns: dict[Pattern, SharedSite] = {}
        self._sector_patterns: dict[Pattern, tuple[int, int, int, int]] = {}

    def block(self, index: int, warps: int) -> None:
        """Count that `warps` warps executed a basic block."""
        self.blocks[index] += warps

    def barrier_wait(self, warps: int) -> None:
        """Count that `warps` warps waited at a barrier of their CTA."""
        self._barrier_waits += warps

    def shared_access(self, access: Access) -> None:
        """Count an access to shared memory."""
        self.add_shared(access.pc, self.shared_pattern(access))

    def add_shared(self, pc: int, counts: SharedSite) -> None:
        """Add to the counts of an instruction on shared memory."""
        self.shared_counts[pc] += (counts.requests, counts.wavefronts, counts.ideal, 1)

    def shared_pattern(self, access: Access) -> SharedSite:
        """What an access to shared memory counts."""
        if self._native is not None:
            sel, numbers = access.sel, self._native.numbers
            warps, lanes = sel.warp_id, sel.lane
            where, mask = access.where, access.mask
            if self._native.wavefronts(where, mask, warps, lanes, access.nbytes, numbers) >= 0:
                return SharedSite(*numbers.tolist()[:3])
        rows, active = _by_warp(access)
        alike = _ctas_alike(access.sel)
        times = 1
        if alike > 1:
            by_cta = rows.reshape(-1, alike, WARP_SIZE)
            same = bool((by_cta == by_cta[:, :1]).all())
            if same and active is not None:
                on = active.reshape(-1, alike, WARP_SIZE)
                same = bool((on == on[:, :1]).all())
                active = on[:, 0] if same else active
            if same:
                rows, times = by_cta[:, 0], alike
        nbytes = access.nbytes
        relative = rows - (rows[:, :1] & ~rows.dtype.type(WAVEFRONT_BYTES - 1))
        key = nbytes, relative.tobytes(), None if active is None else active.tobytes()
        pattern = self._bank_patterns.get(key)
        if pattern is None:
            pattern = self._bank_patterns[key] = bank_wavefronts(rows, active, nbytes)
        return SharedSite(
            times * pattern.requests, times * pattern.wavefronts, times * pattern.ideal
        )

    def global_access(self, access: Access) -> None:
        """Count an access to global memory."""
        if self._native is not None:
            where, mask, numbers = access.where, access.mask, self._native.numbers
            warps = access.sel.warp_id
            if self._native.sectors(where, mask, warps, access.nbytes, numbers) >= 0:
                self.add_global(access.pc, *numbers.tolist())
                return
        rows, active = _by_warp(access)
        times = 1
        if active is None:
            relative = rows - (rows[:, :1] & SECTOR_START)
            if (relative == relative[0]).all():
                times, relative = len(relative), relative[:1]
        else:
            lowest = np.where(active, rows, LAST_ADDRESS).min(axis=1, keepdims=True)
            relative = np.where(active, rows - (lowest & SECTOR_START), 0)
        key = access.nbytes, relative.tobytes(), None if active is None else active.tobytes()
        counts = self._sector_patterns.get(key)
        if counts is None:
            counts = _global_counts(relative.astype(np.int64), active, access.nbytes)
            self._sector_patterns[key] = counts
        self.add_global(access.pc, *(times * count for count in counts))

    def add_global(self, pc: int, requests: int, sectors: int, ideal: int, nbytes: int) -> None:
        """Add to the counts of an instruction on global memory."""
        self.global_counts[pc] += (requests, sectors, ideal, nbytes, 1)

    @property
    def shared_sites(self) -> dict[int, SharedSite]:
        """The instructions on shared memory that ran, by number."""
        return {pc: SharedSite(*row) for pc, row in _counted(self.shared_counts)}

    @property
    def global_sites(self) -> dict[int, GlobalSite]:
        """The instructions on global memory that ran, by number."""
        return {pc: GlobalSite(*row) for pc, row in _counted(self.global_counts)}

    @property
    def instructions(self) -> Counter[str]:
        """The number of warp instructions of each opcode."""
        counts: Counter[str] = Counter()
        for index, warps in self.blocks.items():
            for instruction in self._program.blocks[index].instructions:
                counts[instruction.opcode] += warps
        return counts

    @property
    def conflicts(self) -> int:
        """The number of shared-memory wavefronts that bank conflicts cause."""
        return sum(site.conflicts for site in self.shared_sites.values())

    @property
    def barrier_waits(self) -> int:
        """The number of waits of warps at CTA barriers and at mbarriers."""
        waits = ("mbarrier.try_wait", "mbarrier.test_wait")
        at_mbarriers = (n for code, n in self.instructions.items() if code.startswith(waits))
        return self._barrier_waits + sum(at_mbarriers)

    @property
    def bytes_loaded(self) -> int:
        return self._bytes({"ld", "ldu", "cp"}, tensor_store=False)

    @property
    def bytes_stored(self) -> int:
        return self._bytes({"st", "cp"}, tensor_store=True)

    def to_dict(self) -> dict[str, Any]:
        """Return all counts for JSON, with the PTX and source line of every memory instruction."""
        instructions = self.instructions
        return {
            "warp_instructions": sum(instructions.values()),
            "instructions": dict(sorted(instructions.items())),
            "tensor_operations": self.tensor_operations,
            "barrier_waits": self.barrier_waits,
            "bytes_loaded": self.bytes_loaded,
            "bytes_stored": self.bytes_stored,
            "bank_conflicts": self.conflicts,
            "shared": [
                {**self._place(pc), **asdict(site), "conflicts": site.conflicts}
                for pc, site in sorted(self.shared_sites.items())
            ],
            "global": [
                {**self._place(pc), **asdict(site)}
                for pc, site in sorted(self.global_sites.items())
            ],
        }

    def _bytes(self, opcodes: set[str], tensor_store: bool) -> int:
        total = 0
        for pc, site in self.global_sites.items():
            parts = self._program.kernel.instructions[pc].parts
            if parts[0] in opcodes and (parts[0] != "cp" or _stores(parts) == tensor_store):
                total += site.bytes
        return total

    def _place(self, pc: int) -> dict[str, Any]:
        instruction = self._program.kernel.instructions[pc]
        return {
            "opcode": instruction.opcode,
            "ptx_line": instruction.ptx_line,
            "source": instruction.source,
        }


def _counted(table: Ints) -> Iterator[tuple[int, list[int]]]:
    """Instructions of which an access was counted, with their counts."""
    for pc in np.flatnonzero(table[:, -1]).tolist():
        yield pc, table[pc, :-1].tolist()


def bank_wavefronts(addresses: NDArray[Any], active: Mask, nbytes: int) -> SharedSite:
    """Wavefronts of warp accesses [warps, 32] of `nbytes` a lane.

    A wavefront moves 128 bytes: all lanes of up to 4 bytes, half a warp of 8, a quarter of 16. Two
    lanes conflict when they touch different words of one bank; lanes on the same word do not.
    """
    width = max(nbytes, WAVEFRONT_BYTES // BANKS)
    banks = lanes = WAVEFRONT_BYTES // width
    unit = (addresses.astype(np.int64) // width).reshape(-1, lanes)
    on = np.ones(unit.shape, bool) if active is None else active.reshape(-1, lanes)
    unit = np.sort(np.where(on, unit, -1), axis=1)
    distinct = unit >= 0
    distinct[:, 1:] &= unit[:, 1:] != unit[:, :-1]
    bank = np.arange(len(unit))[:, None] * banks + unit % banks
    load = np.bincount(bank[distinct], minlength=len(unit) * banks).reshape(-1, banks)
    requests = on.reshape(-1, WARP_SIZE).any(axis=1)
    return SharedSite(
        requests=int(np.count_nonzero(requests)),
        wavefronts=int(load.max(axis=1).sum()),
        ideal=int(np.count_nonzero(on.any(axis=1))),
    )


def _global_counts(addresses: Ints, active: Mask, nbytes: int) -> tuple[int, int, int, int]:
    """Requests, sectors, the fewest of them and bytes of warp accesses [warps, 32]."""
    on = np.ones(addresses.shape, bool) if active is None else active
    requests, lanes = np.count_nonzero(on.any(axis=1)), np.count_nonzero(on)
    return int(requests), *count_sectors(addresses, active, nbytes), int(lanes) * nbytes


def count_sectors(addresses: Ints, active: Mask, nbytes: int) -> tuple[int, int]:
    """Sectors that warp accesses [warps, 32] touch, and the fewest their bytes could lie in."""
    sectors = _distinct(addresses // SECTOR_BYTES, active)
    needed = -(-_distinct(addresses, active) * nbytes // SECTOR_BYTES)
    return int(sectors.sum()) * max(1, nbytes // SECTOR_BYTES), int(needed.sum())


def _distinct(values: Ints, active: Mask) -> Ints:
    """How many different values every row has."""
    ordered = np.sort(values if active is None else np.where(active, values, NOWHERE), axis=1)
    new = ordered != NOWHERE
    new[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    counts: Ints = np.add.reduce(new, axis=1, dtype=np.int64)
    return counts


def _by_warp(access: Access) -> tuple[NDArray[Any], Mask]:
    """Addresses and active lanes as [warps, 32]."""
    sel, addr, mask = access.sel, access.where, access.mask
    if sel.whole_warps:
        return addr.reshape(-1, WARP_SIZE), None if mask is None else mask.reshape(-1, WARP_SIZE)
    row = np.searchsorted(sel.warps, sel.warp_id)
    rows = np.zeros((len(sel.warps), WARP_SIZE), addr.dtype)
    active = np.zeros(rows.shape, bool)
    rows[row, sel.lane] = addr
    active[row, sel.lane] = True if mask is None else mask
    return rows, active


def _ctas_alike(sel: Selection) -> int:
    """How many neighbouring warps of a selection are one warp of different CTAs."""
    if sel.key is None or not sel.whole_warps:
        return 1
    known = sel.memo.get("ctas_alike")
    if not isinstance(known, int):
        ctas = int(sel.cta.max()) + 1
        known = ctas if sel.cta[0] == 0 and sel.count % (ctas * WARP_SIZE) == 0 else 1
        sel.memo["ctas_alike"] = known
    return known


def _stores(parts: tuple[str, ...]) -> bool:
    """Whether a copy goes from shared to global memory: the destination is named first."""
    spaces = [part.split("::")[0] for part in parts if part.startswith(("global", "shared"))]
    return spaces[:1] == ["global"]
