# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from ptx_emulator.machine.checks.flag_order import MEMORY, Actor, FlagOrder
from ptx_emulator.program.ordering import Ordering
from tests.emulator.machine.machines import make_machine

RELEASE = Ordering(strong=True, acquires=False, releases=True, scope="gpu", read_only=False)
ACQUIRE = Ordering(strong=True, acquires=True, releases=False, scope="gpu", read_only=False)
BOTH = Ordering(strong=True, acquires=True, releases=True, scope="gpu", read_only=False)


def make_order(ctas: int) -> tuple[FlagOrder, list[Actor], list[int]]:
    """Flags of CTAs of one warp, the warps, and the epochs that they are in."""
    machine = make_machine(ctas=ctas)
    epochs = [int(machine.clocks.seen[warp, 0]) for warp in range(ctas)]
    return FlagOrder(machine.clocks), [Actor(warp, False) for warp in range(ctas)], epochs


def sees(order: FlagOrder, cta: int, other: int, epoch: int) -> bool:
    return order.covers(cta, other, 0, epoch, loose=False)


def test_who_acquires_a_flag_has_seen_those_who_released_it() -> None:
    order, warps, epochs = make_order(3)
    order.publish(warps[0], 8, RELEASE, adds=True)
    order.publish(warps[1], 8, RELEASE, adds=True)
    order.observe(warps[2], 16, ACQUIRE)
    assert not sees(order, 2, 0, epochs[0])
    order.observe(warps[2], 8, ACQUIRE)
    assert sees(order, 2, 0, epochs[0])
    assert sees(order, 2, 1, epochs[1])
    assert not sees(order, 1, 0, epochs[0])  # a release alone sees nothing
    assert not sees(order, 2, 0, epochs[0] + 1)  # what CTA 0 does behind its release


def test_a_store_replaces_what_was_published_before() -> None:
    order, warps, epochs = make_order(3)
    order.publish(warps[0], 8, RELEASE, adds=True)
    order.publish(warps[1], 8, RELEASE, adds=False)
    order.observe(warps[2], 8, ACQUIRE)
    assert sees(order, 2, 1, epochs[1])
    assert not sees(order, 2, 0, epochs[0])


def test_order_goes_through_a_third_cta() -> None:
    order, warps, epochs = make_order(3)
    order.publish(warps[0], 8, RELEASE, adds=True)
    order.observe(warps[1], 8, ACQUIRE)
    order.publish(warps[1], 16, RELEASE, adds=True)
    order.observe(warps[2], 16, ACQUIRE)
    assert sees(order, 2, 0, epochs[0])


def test_without_fences_atomics_order_loosely() -> None:
    order, warps, epochs = make_order(2)
    relaxed = BOTH._replace(acquires=False, releases=False)
    order.publish(warps[0], 8, relaxed, adds=True)
    order.observe(warps[1], 8, relaxed)
    assert not sees(order, 1, 0, epochs[0])
    assert order.covers(1, 0, 0, epochs[0], loose=True)


def test_many_observations_are_kept_in_few() -> None:
    order, warps, epochs = make_order(2)
    for turn in range(3 * MEMORY):
        order.publish(warps[0], 8, RELEASE, adds=True)
        order.observe(warps[1], 8, BOTH)
        order.publish(warps[1], 16, BOTH, adds=True)
        assert sees(order, 1, 0, epochs[0] + turn)
        assert not sees(order, 1, 0, epochs[0] + turn + 1)
