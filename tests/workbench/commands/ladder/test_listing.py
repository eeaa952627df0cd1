# SPDX-License-Identifier: Apache-2.0
"""`ladder list`: every rung with its change and its idea."""

from __future__ import annotations

from flash_attention.families.passes import Pass
from flash_attention.kernel_configs import HopperForwardKernelConfig
from flash_attention.ladder import FAMILY, get_ladder
from flash_attention_workbench.commands.ladder.listing import change_of
from tests.workbench.commands.invoke import invoke, refuse


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


def test_a_change_of_family_names_the_architectures() -> None:
    (start,) = (rung for rung in get_ladder() if rung.field == FAMILY)
    below = get_ladder()[start.number - 2]
    assert change_of(below, start) == "family: sm_80 -> sm_90"


def test_a_change_of_tile_order_names_both() -> None:
    (dynamic,) = (rung for rung in get_ladder() if rung.name == "longest first")
    below = get_ladder()[dynamic.number - 2]
    assert change_of(below, dynamic) == "tile_order: PERSISTENT -> DYNAMIC"


def test_hopper_rungs_are_marked() -> None:
    printed = invoke("ladder", "list")
    for rung in get_ladder():
        (row,) = (line for line in printed.splitlines() if f"{rung.number:2} {rung.name} " in line)
        wanted = "sm_90" if isinstance(rung.config, HopperForwardKernelConfig) else "any"
        assert f" {wanted} " in row.partition(rung.name)[2]


def test_the_rungs_of_the_backward_pass() -> None:
    printed = invoke("ladder", "list", "--pass", "backward")
    lines = iter(printed.splitlines())
    for rung in get_ladder(pass_=Pass.BACKWARD):
        assert any(f"{rung.number} {rung.name} " in line for line in lines)
    assert "query_gradient: STAGED -> OWN_WARPGROUP" in printed
    assert "family: sm_80 -> sm_90" in printed
    message = refuse("ladder", "list", "--pass", "sideways")
    assert "--pass is 'sideways'; choose from forward, backward" in message
