# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from flash_attention.emulator.machine.cta_order import CtaOrder


def seen(order: CtaOrder, cta: int, other: int, epoch: int) -> bool:
    return bool(order.seen[cta, other] >= epoch)


def test_who_meets_a_place_later_has_seen_those_before() -> None:
    order = CtaOrder(3)
    before = order.epochs(np.arange(3))
    order.meet(0, 8)
    after = order.epochs(np.arange(3))
    order.meet(1, 8)
    assert seen(order, 1, 0, before[0])
    assert not seen(order, 1, 0, after[0])  # what CTA 0 does behind its atomic
    assert not seen(order, 0, 1, before[1])
    assert not seen(order, 2, 0, before[0])


def test_order_goes_through_a_third_cta_and_not_through_another_place() -> None:
    order = CtaOrder(3)
    first = order.epochs(np.arange(3))
    order.meet(0, 8)
    order.meet(1, 8)
    order.meet(2, 16)
    assert not seen(order, 2, 0, first[0])
    order.meet(1, 16)
    order.meet(2, 16)
    assert seen(order, 2, 0, first[0])


def test_who_acquires_a_place_has_seen_those_who_released_it() -> None:
    order = CtaOrder(3)
    first = order.epochs(np.arange(3))
    order.release(0, 8)
    order.release(1, 8)
    order.acquire(2, 16)
    assert not seen(order, 2, 0, first[0])
    order.acquire(2, 8)
    assert seen(order, 2, 0, first[0])
    assert seen(order, 2, 1, first[1])
    assert not seen(order, 1, 0, first[0])  # a release alone sees nothing
    assert not seen(order, 2, 1, order.epochs(np.arange(3))[1])


def test_writes_are_unseen_until_their_cta_is() -> None:
    order, launch = CtaOrder(2), 5
    writers = np.array([[6, 5], [7, 5]], np.int32)  # CTA 0 and CTA 1 of this launch, and one before
    epochs, both = np.ones((2, 2), np.int32), np.array([1, 1])
    assert order.unseen(writers, epochs, both, launch).tolist() == [True, False]
    order.release(0, 8)
    order.acquire(1, 8)
    assert not order.unseen(writers, epochs, both, launch).any()
    assert order.unseen(writers, epochs + 1, both, launch).tolist() == [True, False]
