# SPDX-License-Identifier: Apache-2.0
"""`ladder list`: every rung with its change and its idea."""

from __future__ import annotations

from flash_attention.cli.ladder.listing import change_of
from flash_attention.ladder import get_ladder
from tests.cli.invoke import invoke


def test_every_rung_is_a_row() -> None:
    words = " ".join(invoke("ladder", "list").split())
    for rung in get_ladder():
        assert f"{rung.number} {rung.name} " in words
        assert rung.field is None or rung.field in words


def test_a_change_names_both_values() -> None:
    base, second = get_ladder()[:2]
    assert second.field is not None
    old, new = getattr(base.config, second.field), getattr(second.config, second.field)
    assert change_of(base, second) == f"{second.field}: {old} -> {new}"
    assert change_of(None, base) == ""
