# SPDX-License-Identifier: Apache-2.0
"""Records are read as what their dataclass says, and a field that is wrong is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from flash_attention.errors import UnsupportedError
from flash_attention.records import Count, Finite, Positive, Size, read_part, read_record


@dataclass(frozen=True)
class Point:
    heads: Size
    window: Count = 0


@dataclass(frozen=True)
class Fields:
    name: str
    count: int
    ms: Positive
    on: bool
    peers: Mapping[str, Finite]
    lengths: tuple[int, ...]
    fate: Literal["hung", "wrong"]
    point: Point
    rows: tuple[Point, ...]
    ratio: float | None = None


GOOD: dict[str, Any] = {
    **{"name": "a", "count": 3, "ms": 1, "on": True, "peers": {"b": 2.0}, "lengths": [4, 5]},
    **{"fate": "hung", "point": {"heads": 2}, "rows": [{"heads": 1, "window": 3}]},
}


def test_a_record_becomes_what_it_is_of() -> None:
    rows = (Point(1, 3),)
    read = Fields("a", 3, 1, True, {"b": 2.0}, (4, 5), "hung", Point(2), rows)
    assert read_record(GOOD, Fields) == read
    assert read_record({**GOOD, "ratio": None}, Fields) == read
    assert read_record({**GOOD, "ratio": 0.5}, Fields).ratio == 0.5
    assert read_part({**GOOD, "more": 1}, Fields) == read


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": []}, r"^name is \[\]; a str is needed"),
        ({"count": 1.5}, r"^count is 1\.5; an int is needed"),
        ({"count": True}, r"^count is True; an int is needed"),
        ({"ms": None}, r"^ms is None; a float is needed"),
        ({"ms": 0}, r"^ms is 0; it must be positive, and no more than 1e\+15"),
        ({"ms": float("nan")}, r"^ms is nan; it must be positive"),
        ({"ms": 2e15}, r"^ms is 2000000000000000.0; it must be positive, and no more than 1e\+15"),
        ({"on": 1}, r"^on is 1; a bool is needed"),
        ({"peers": [1]}, r"^peers is \[1\]; an object is needed"),
        ({"peers": {"b": "2"}}, r"^peers\.b is '2'; a float is needed"),
        ({"peers": {"b": float("nan")}}, r"^peers\.b is nan; a number is needed"),
        ({"lengths": 4}, r"^lengths is 4; a list is needed"),
        ({"lengths": [1, {}]}, r"^lengths\[1\] is \{\}; an int is needed"),
        ({"fate": "lost"}, r"^fate is 'lost'; there are hung, wrong"),
        ({"fate": []}, r"^fate is \[\]; there are hung, wrong"),
        ({"point": {"heads": 0}}, r"^heads is 0; it is at least 1"),
        ({"point": {"heads": 1, "window": -1}}, r"^window is -1; it is 0 or more"),
        ({"rows": {}}, r"^it has no list of rows"),
        ({"rows": []}, r"^it has no row: nothing was measured"),
        ({"rows": [{"heads": 1}, 1]}, r"^row 2: 1 is no JSON object"),
        ({"rows": [{"heads": 1}, {"heads": 0}]}, r"^row 2: heads is 0; it is at least 1"),
        ({"ratio": "x"}, r"^ratio is 'x'; a float or null is needed"),
        ({"more": 1}, r"^unknown field 'more'; there are name, count"),
    ],
)
def test_a_field_that_is_wrong_is_named(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        read_record({**GOOD, **changes}, Fields)


def test_what_is_no_object_or_has_a_hole_is_refused() -> None:
    for read in (read_record, read_part):
        with pytest.raises(UnsupportedError, match=r"^\[1, 2\] is no JSON object"):
            read([1, 2], Fields)
        with pytest.raises(UnsupportedError, match=r"^ms is missing; there are name, count, ms"):
            read({k: v for k, v in GOOD.items() if k != "ms"}, Fields)


def test_fields_of_some_types_are_parsed() -> None:
    parsers = {Point: lambda name, value: Point(len(name) + value)}
    assert read_record({**GOOD, "point": 7}, Fields, parsers).point == Point(12)
