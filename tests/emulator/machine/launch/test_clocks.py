# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from ptx_emulator import GlobalMemory, load_program
from ptx_emulator.machine.machine import Machine
from tests.emulator.machine.machines import PLACES, make_machine, warp


def test_every_agent_has_its_own_number_and_name() -> None:
    clocks = make_machine(warps=8).clocks
    numbers = [*range(8), *(clocks.lane_agent(w) for w in range(8))]
    numbers += [clocks.copy_agent(w) for w in range(8)]
    numbers += [clocks.barrier_agent(s) for s in range(64)]
    numbers += [clocks.wgmma_agent(w) for w in range(8)] + [clocks.bulk_agent(w) for w in range(8)]
    assert numbers == list(range(clocks.num_agents))
    assert clocks.describe(3) == "warp 3"
    assert clocks.describe(clocks.lane_agent(2)) == "one lane of warp 2"
    assert clocks.describe(clocks.copy_agent(5)) == "cp.async of warp 5"
    assert clocks.describe(clocks.barrier_agent(9)) == "a bulk load on mbarrier slot 9"
    assert clocks.describe(clocks.wgmma_agent(4)) == "wgmma of warpgroup 1"
    assert clocks.describe(clocks.bulk_agent(7)) == "a bulk store of warp 7"


def test_only_kernels_with_engines_have_clocks_for_them() -> None:
    threads = load_program(PLACES.replace("wgmma.fence.sync.aligned;\n", ""))
    clocks = Machine(threads, GlobalMemory(), (1, 1, 1), 256, (), 0, True).clocks
    assert clocks.num_agents == clocks.copy_agent(7) + 1 == 24
    assert clocks.describe(23) == "cp.async of warp 7"
    for starts in ("mbarrier.init.shared::cta.b64 [buffer], 1;", "wgmma.fence.sync.aligned;"):
        program = load_program(PLACES.replace("wgmma.fence.sync.aligned;", starts))
        clocks = Machine(program, GlobalMemory(), (1, 1, 1), 256, (), 0, True).clocks
        assert clocks.num_agents == clocks.bulk_agent(7) + 1 == 24 + 64 + 16


def test_a_barrier_of_all_warps_stays_inside_each_cta() -> None:
    clocks = make_machine(ctas=2, warps=2).clocks
    agent = clocks.copy_agent(0)
    clocks.learn(0, agent, 5, alone=False)  # warp 0 of CTA 0
    clocks.join_all()
    assert clocks.seen[:, agent].tolist() == [5, 0, 5, 0] * 2
    assert clocks.seen_by_lanes[:, agent].tolist() == [5, 0, 5, 0] * 2
    # Warp 0 of CTA 0 knows epoch 1 of warp 1 and is in its own second epoch.
    assert clocks.seen[0, :2].tolist() == [2, 1]
    assert clocks.seen_by_lanes[0, :2].tolist() == [1, 1]


def test_join_all_and_join_agree() -> None:
    one, other = (make_machine(ctas=3, warps=4).clocks for _ in range(2))
    rng = np.random.default_rng(1)
    for name in ("seen", "seen_by_proxy", "seen_by_lanes"):
        values = rng.integers(0, 9, one.seen.shape, np.int32)
        getattr(one, name)[:] = values
        getattr(other, name)[:] = values
    one.join_all()
    other.join(np.arange(12))
    for name in ("seen", "seen_by_proxy", "seen_by_lanes"):
        assert (getattr(one, name) == getattr(other, name)).all()


def test_a_barrier_of_some_warps_leaves_the_others_alone() -> None:
    clocks = make_machine(ctas=2, warps=3).clocks
    before = clocks.seen.copy()
    clocks.join(np.array([0, 2, 4, 1]))  # warps 0, 1, 2 of CTA 0 and warp 0 of CTA 1
    assert clocks.seen[0, :3].tolist() == [2, 1, 1]
    assert clocks.seen[4, :3].tolist() == [1, 1, 2]
    assert clocks.seen[1, :3].tolist() == [2, 0, 0]
    assert (clocks.seen[[3, 5]] == before[[3, 5]]).all()


def test_who_only_arrives_gives_what_it_knew_then() -> None:
    machine = make_machine(warps=2)
    clocks = machine.clocks
    released = clocks.release(0)
    clocks.tick(warp(machine, 0))  # whatever warp 0 does after arriving
    clocks.join(np.array([1]), [released])
    assert clocks.seen[1, 0] == 1
    assert clocks.seen[0].tolist()[:2] == [3, 0]  # it has not learnt anything of warp 1


def test_a_warp_is_not_its_lanes() -> None:
    machine = make_machine(warps=2)
    clocks = machine.clocks
    lanes = warp(machine, 1)
    others = np.full(clocks.num_agents, 4, np.int32)
    clocks.acquire(1, np.stack((others, others - 1)))
    assert clocks.seen[1].min() == 4
    assert clocks.seen_by_proxy[1].min() == 3
    assert clocks.seen_by_lanes[1].max() == 0
    clocks.sync_warp(lanes)
    assert clocks.seen_by_lanes[1].min() == 4
    clocks.acquire(1, np.stack((others + 5, others)), whole_warp=True)
    assert clocks.seen_by_lanes[1].min() == 9


def test_what_one_lane_learns_reaches_the_others_by_syncwarp() -> None:
    machine = make_machine(warps=2)
    clocks = machine.clocks
    agent = clocks.bulk_agent(1)
    clocks.learn(1, agent, 3, alone=True)
    assert clocks.seen[1, agent] == 0
    assert clocks.known(1, alone=True)[0][agent] == 3
    clocks.sync_warp(machine.lanes.select(np.array([32])))  # one lane alone synchronises nobody
    assert clocks.seen[1, agent] == 0
    clocks.sync_warp(warp(machine, 1))
    assert clocks.seen[1, agent] == 3


def test_one_lane_releases_what_the_others_did_before_syncwarp() -> None:
    machine = make_machine(warps=2)
    clocks = machine.clocks
    lane = clocks.lane_agent(1)
    assert clocks.known(1, alone=False)[0][[1, lane]].tolist() == [1, 1]
    assert clocks.known(1, alone=True)[0][[1, lane]].tolist() == [0, 1]
    clocks.sync_warp(warp(machine, 1))
    assert clocks.known(1, alone=True)[0][[1, lane]].tolist() == [1, 2]


@pytest.mark.parametrize("release", ["tick", "sync_warp", "fence_proxy"])
def test_what_follows_a_release_is_in_a_new_epoch(release: str) -> None:
    machine = make_machine(ctas=2, warps=2)
    version = machine.clocks.version
    getattr(machine.clocks, release)(warp(machine, 1))
    assert machine.clocks.epochs(np.arange(4)).tolist() == [1, 1, 2, 2]
    assert machine.clocks.version > version
    if release == "fence_proxy":
        assert machine.clocks.seen_by_proxy[2, 1] == 1
