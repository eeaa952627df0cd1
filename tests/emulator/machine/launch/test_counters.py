# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ptx_emulator import GlobalMemory, load_program, run
from ptx_emulator.machine.access import Access
from ptx_emulator.machine.launch.counters import bank_wavefronts, count_sectors
from ptx_emulator.machine.machine import Machine
from tests.emulator.machine.machines import (
    COPY,
    FIRST_LINE,
    GLOBAL_LOAD,
    GLOBAL_STORE,
    LOAD,
    PLACES,
    STORE,
    addresses,
    make_machine,
)

LANES = np.arange(32, dtype=np.int64)
ROW_BYTES = 256


def shared_site(machine: Machine, pc: int) -> tuple[int, int, int]:
    site = machine.counters.shared_sites[pc]
    return site.requests, site.wavefronts, site.ideal


def global_site(machine: Machine, pc: int) -> tuple[int, int, int, int]:
    site = machine.counters.global_sites[pc]
    return site.requests, site.sectors, site.ideal_sectors, site.bytes


@pytest.mark.parametrize(("swizzled", "ways"), [(False, 8), (True, 1)])
def test_ldmatrix_on_rows_of_256_bytes(swizzled: bool, ways: int) -> None:
    machine = make_machine(ctas=2, warps=2, shared=16 * ROW_BYTES, checks=True)
    lanes = machine.lanes.all
    row, column = lanes.lane % 16, lanes.lane // 16
    if swizzled:
        column = column ^ (row % 8)
    where = addresses(lanes, row * ROW_BYTES + column * 16)[None]
    machine.matrix.ldmatrix(lanes, where, 4, False, (LOAD,))
    assert shared_site(machine, LOAD) == (4, 16 * ways, 16)
    assert machine.counters.conflicts == 16 * (ways - 1)


@pytest.mark.parametrize(
    ("nbytes", "offsets", "wavefronts", "ideal"),
    [
        (4, LANES * 4, 1, 1),
        (4, LANES * 0, 1, 1),  # one word for all
        (4, LANES * 8, 2, 1),
        (4, LANES * 128, 32, 1),
        (4, LANES // 2 * 4 + LANES % 2 * 128, 2, 1),
        (4, LANES * 132, 1, 1),
        (2, LANES * 2, 1, 1),  # two lanes a word
        (1, LANES * 128, 32, 1),
        (8, LANES * 8, 2, 2),
        (8, LANES * 256, 32, 2),
        (16, LANES * 16, 4, 4),
        (16, LANES * 256, 32, 4),
        (16, LANES % 8 * 16, 4, 4),
    ],
)
def test_bank_model(nbytes: int, offsets: np.ndarray, wavefronts: int, ideal: int) -> None:
    site = bank_wavefronts(offsets[None], None, nbytes)
    assert (site.requests, site.wavefronts, site.ideal) == (1, wavefronts, ideal)


def test_bank_model_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    for nbytes in (1, 2, 4, 8, 16):
        where = rng.integers(0, 64, (20, 32)) * nbytes
        on = rng.random((20, 32)) < 0.7
        on[3] = False
        expected = requests = ideal = 0
        width = max(nbytes, 4)
        for row in range(20):
            requests += bool(on[row].any())
            for phase in range(width // 4):
                lanes = range(phase * 128 // width, (phase + 1) * 128 // width)
                words = {
                    int(where[row, lane]) // 4 + k
                    for lane in lanes
                    if on[row, lane]
                    for k in range(width // 4)
                }
                ideal += bool(words)
                banks = [word % 32 for word in words]
                expected += max((banks.count(bank) for bank in banks), default=0)
        site = bank_wavefronts(where, on, nbytes)
        assert (site.requests, site.wavefronts, site.ideal) == (requests, expected, ideal)


def test_all_ctas_count_whether_alike_or_not() -> None:
    machine = make_machine(ctas=3, warps=2)
    lanes = machine.lanes.all
    counters = machine.counters
    apart = Access(lanes, addresses(lanes, lanes.lane * 8), 4, None, LOAD, "load")
    counters.shared_access(apart)
    assert shared_site(machine, LOAD) == (6, 12, 6)
    uneven = np.where(lanes.cta == 1, lanes.lane * 4, lanes.lane * 8)
    counters.shared_access(Access(lanes, addresses(lanes, uneven), 4, None, LOAD, "load"))
    assert shared_site(machine, LOAD) == (12, 12 + 2 * (2 + 1 + 2), 12)
    counters.shared_access(
        Access(lanes, addresses(lanes, lanes.lane * 8), 4, lanes.lane < 16, STORE, "load")
    )
    assert shared_site(machine, STORE) == (6, 6, 6)
    only_one = (lanes.cta == 2) & (lanes.warp == 0)
    counters.shared_access(
        Access(lanes, addresses(lanes, lanes.lane * 8), 4, only_one, STORE, "load")
    )
    assert shared_site(machine, STORE) == (7, 8, 7)
    part = machine.lanes.select(np.array([0, 5, 40, 41]))  # lanes of two warps
    counters.shared_access(Access(part, addresses(part, part.lane * 128), 4, None, COPY, "load"))
    assert shared_site(machine, COPY) == (2, 4, 2)


def test_sectors_of_a_512_byte_request() -> None:
    machine = make_machine(ctas=2, warps=2)
    lanes = machine.lanes.all
    base = (lanes.warp_id * 8192 + (1 << 44)).astype(np.uint64)
    where = base + lanes.lane.astype(np.uint64) * np.uint64(16)
    machine.counters.global_access(Access(lanes, where, 16, None, GLOBAL_LOAD, "load"))
    assert global_site(machine, GLOBAL_LOAD) == (4, 4 * 16, 4 * 16, 4 * 512)
    first = Access(lanes, where, 16, lanes.lane < 3, GLOBAL_LOAD, "load")
    machine.counters.global_access(first)
    assert global_site(machine, GLOBAL_LOAD) == (8, 4 * 18, 4 * 18, 4 * 560)
    uneven = base + lanes.lane.astype(np.uint64) * (16 + 16 * lanes.warp).astype(np.uint64)
    machine.counters.global_access(Access(lanes, uneven, 16, None, COPY, "load"))
    assert global_site(machine, COPY) == (4, 2 * (16 + 32), 4 * 16, 4 * 512)
    far = base + lanes.lane.astype(np.uint64) * np.uint64(256)
    machine.counters.global_access(Access(lanes, far, 4, None, GLOBAL_STORE, "load"))
    assert global_site(machine, GLOBAL_STORE) == (4, 4 * 32, 4 * 4, 4 * 128)


@pytest.mark.parametrize(
    ("nbytes", "offsets", "sectors", "ideal"),
    [
        (4, LANES * 4, 4, 4),
        (4, LANES * 4 + 16, 5, 4),
        (4, LANES * 0, 1, 1),
        (2, LANES * 2, 2, 2),
        (16, LANES * 16 + 16, 17, 16),
        (16, LANES * 32, 32, 16),
        (32, LANES * 32, 32, 32),
    ],
)
def test_sector_model(nbytes: int, offsets: np.ndarray, sectors: int, ideal: int) -> None:
    assert count_sectors(offsets[None], None, nbytes) == (sectors, ideal)
    aligned = 1 << 44
    machine = make_machine(ctas=2)
    lanes = machine.lanes.all
    where = np.tile(offsets + aligned, 2).astype(np.uint64)
    where[32:] += np.uint64(4096 if nbytes != 2 else 2 * 64)
    machine.counters.global_access(Access(lanes, where, nbytes, None, GLOBAL_LOAD, "load"))
    assert global_site(machine, GLOBAL_LOAD) == (2, 2 * sectors, 2 * ideal, 64 * nbytes)


def test_a_site_moves_only_its_own_way() -> None:
    machine = make_machine()
    for pc, nbytes in ((COPY, 100), (GLOBAL_LOAD, 20), (GLOBAL_STORE, 3)):
        machine.counters.add_global(pc, 1, 1, 1, nbytes)
    assert machine.counters.bytes_loaded == 120
    assert machine.counters.bytes_stored == 3


def test_counts_of_a_run_are_the_same_every_time() -> None:
    text = PLACES.replace("places()", "places(.param .u64 p)").replace(
        ".loc 1 10 0", "ld.param.u64 %rd0, [p];\nadd.u64 %rd1, %rd0, 256;\n.loc 1 10 0"
    )
    text = text.replace("bar.sync 0;", "cp.async.wait_all;\nbar.sync 0;")
    text = text.replace("buffer[16]", "buffer[64]").replace(
        "cp.async.cg.shared.global [buffer]", "cp.async.cg.shared.global [buffer+16]"
    )
    program = load_program(text)

    def counts() -> dict[str, Any]:
        memory = GlobalMemory()
        place = memory.alloc(np.zeros(512, np.uint8))
        result = run(program, memory, grid=(2, 1, 1), block=64, args=[place])
        return result.counters.to_dict()

    once = counts()
    assert once == counts()
    assert json.loads(json.dumps(once)) == once
    assert once["warp_instructions"] == 4 * 13
    assert once["barrier_waits"] == 4
    assert once["instructions"]["ld.shared.u32"] == 4
    assert once["bytes_loaded"] == 4 * 32 * (16 + 4)
    assert once["bytes_stored"] == 4 * 32 * 4
    store, load, copy = once["shared"]
    assert (store["opcode"], store["source"]) == ("st.shared.u32", "places.cu:10")
    assert (load["ptx_line"], load["requests"], load["wavefronts"]) == (FIRST_LINE + 4, 4, 4)
    assert (copy["opcode"], copy["wavefronts"], copy["conflicts"]) == (
        "cp.async.cg.shared.global",
        16,
        0,
    )
    site, *_ = (site for site in once["global"] if site["opcode"].startswith("ld"))
    assert (site["requests"], site["sectors"], site["ideal_sectors"]) == (4, 4, 4)
