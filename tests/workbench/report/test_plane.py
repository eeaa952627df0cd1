# SPDX-License-Identifier: Apache-2.0
"""Where a value goes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flash_attention_workbench.report import plane


def test_scales_map_their_ends_and_their_middle() -> None:
    linear = plane.Scale((0, 200), (10, 90))
    assert [linear(v) for v in (0, 100, 200)] == [10, 50, 90]
    down = plane.Scale((0, 4), (100, 20))
    assert down(1) == 80
    log = plane.Scale((512, 8192), (0, 100), log=True)
    assert [log(v) for v in (512, 1024, 2048, 8192)] == pytest.approx([0, 25, 50, 100])


@pytest.mark.parametrize(
    ("top", "ticks"),
    [
        (706, [0, 200, 400, 600]),
        (823, [0, 200, 400, 600, 800]),
        (7.6, [0, 2, 4, 6]),
        (1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    ],
)
def test_ticks_are_round_and_begin_at_nought(top: float, ticks: list[float]) -> None:
    assert plane.nice_ticks(top) == pytest.approx(ticks)


def test_ticks_of_a_logarithmic_scale_are_round() -> None:
    assert plane.log_ticks(3, 60) == [5, 10, 20, 50]
    assert plane.log_ticks(0.9, 1.1e5) == [1, 10, 100, 1000, 10000, 100000]


def test_labels_that_collide_move_apart_around_their_middle() -> None:
    assert plane.spread_out([10, 50], 13) == [10, 50]
    assert plane.spread_out([100, 100, 10], 12) == [94, 106, 10]


@given(st.lists(st.floats(0, 1000), max_size=6))
def test_labels_keep_their_distance_and_order(wanted: list[float]) -> None:
    places = plane.spread_out(wanted, 13)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for above, below in itertools.pairwise(order):
        assert places[below] - places[above] >= 13 - 1e-6


def test_a_polyline_is_made_of_pieces_that_meet() -> None:
    first, second = plane.polyline([(0, 1), (50, 2), (100, 3)], "c")
    assert first == '<line x1="0.00%" y1="1.0" x2="50.00%" y2="2.0" class="c"></line>'
    assert 'x1="50.00%" y1="2.0" x2="100.00%" y2="3.0"' in second


def test_a_picture_has_a_label_or_is_decoration() -> None:
    assert 'role="img" aria-label="speeds"' in plane.svg(10, label="speeds")
    assert 'aria-hidden="true"' in plane.svg(10)
