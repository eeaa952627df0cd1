# SPDX-License-Identifier: Apache-2.0
"""Overlap of strided views against the sets of bytes they touch."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from flash_attention.call.overlap import Layout, may_overlap, overlaps_itself


def element_starts(layout: Layout) -> list[int]:
    return [
        sum(i * s for i, s in zip(index, layout.strides, strict=True))
        for index in itertools.product(*map(range, layout.shape))
    ]


def touched_bytes(layout: Layout, start: int = 0) -> list[int]:
    return [start + e + b for e in element_starts(layout) for b in range(layout.itemsize)]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    strides = draw(st.lists(st.integers(0, 40), min_size=len(sizes), max_size=len(sizes)))
    return Layout(tuple(sizes), tuple(strides), draw(st.sampled_from((1, 2, 4))))


ONE, TWO = Layout((1,), (2,), 2), Layout((2,), (1,), 2)  # the elements of TWO share a byte
THREE = Layout((3,), (2,), 1)
NEAR = [  # each with another that overlaps itself, or does not, by the last step of a stride
    Layout((2,), (0,), 1),
    Layout((2, 2), (4, 5), 2),
    Layout((2, 2), (4, 6), 2),
    Layout((2, 3), (4, 2), 1),
    Layout((2, 3), (6, 2), 1),
    Layout((2, 2), (2, 4), 1),
    Layout((3, 2), (2, 4), 1),
    Layout((2, 2, 2), (1, 3, 4), 1),
    Layout((2, 2, 2), (2, 3, 8), 1),
]


def near(test: Callable[[Layout], None]) -> Callable[[Layout], None]:
    """Has a test of one layout tried with all of these."""
    for layout in (TWO, *NEAR):
        test = example(layout)(test)
    return test


@given(layouts(), layouts(), st.integers(-300, 300))
@example(ONE, ONE, 1)
@example(ONE, ONE, -1)
@example(ONE, ONE, 2)
@example(THREE, THREE, -2)
@example(THREE, THREE, 4)
@example(THREE, THREE, -4)
@example(THREE, THREE, 6)
@example(THREE, THREE, -6)
def test_two_views_overlap_exactly_when_they_share_a_byte(
    first: Layout, second: Layout, distance: int
) -> None:
    shared = set(touched_bytes(first)) & set(touched_bytes(second, distance))
    assert may_overlap(distance, first, second) == bool(shared)


@near
@given(layouts())
def test_a_view_overlaps_itself_exactly_when_two_elements_share_a_byte(layout: Layout) -> None:
    touched = touched_bytes(layout)
    assert overlaps_itself(layout) == (len(set(touched)) < len(touched))


@near
@given(layouts())
def test_the_span_ends_at_the_last_byte(layout: Layout) -> None:
    assert layout.span == max(touched_bytes(layout), default=-1) + 1


def byte_layout(tensor: torch.Tensor) -> Layout:
    size = tensor.element_size()
    return Layout(tuple(tensor.shape), tuple(s * size for s in tensor.stride()), size)


def test_the_slots_of_a_large_packed_buffer_are_apart_and_shifted_ones_are_not() -> None:
    packed = torch.empty(8, 4096, 4, 16, 128, dtype=torch.float16)
    q, o = packed[:, :, 0], packed[:, :, 3]
    distance = o.data_ptr() - q.data_ptr()
    assert not may_overlap(distance, byte_layout(q), byte_layout(o))
    assert may_overlap(distance + 16, byte_layout(q), byte_layout(o))
    assert not overlaps_itself(byte_layout(o))
    assert overlaps_itself(byte_layout(packed[:, :1, 0].expand(-1, 4096, -1, -1)))


def test_strides_too_tangled_to_decide_count_as_overlapping() -> None:
    """Remainders modulo 7 show that these views are apart; the search gives up before that."""
    strides = tuple(10**18 + 7 * 11**i for i in range(10))
    first, second = Layout((30,) * 5, strides[:5], 2), Layout((30,) * 5, strides[5:], 2)
    assert may_overlap(5 * 10**18 + 10**9 + 3, first, second)
    assert may_overlap(1, Layout((10**6,), (3,), 1), Layout((10**6,), (5,), 1))  # too many elements
