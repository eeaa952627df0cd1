# SPDX-License-Identifier: Apache-2.0
"""Tiles that heads of a group share: in steps with so many tiles that no keys are split, and where
all sequences have one length."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention.arch import MEASURED_ARCH
from flash_attention.call.call import Call
from flash_attention.families.sm90.forward.config import HopperForwardKernelConfig
from flash_attention.families.sm90.forward.features import SplitKind
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.launch import device
from flash_attention.launch.emulation import Settings
from flash_attention.launch.plan import Plan
from ptx_emulator import SCHEDULES
from tests.devices import on_devices, ran
from tests.serving_steps import Step, assert_right

pytestmark = pytest.mark.slow  # left out of `make quick`
WINDOW = (("window", (50, 0)),)
STEPS = {
    "7 heads of a group": Step((1, 40, 1), (90, 70, 33), heads=7, heads_k=1, d=128),
    "3, a window and sinks": Step(
        (60, 0, 2, 1), (100, 0, 60, 7), heads=6, sinks=True, keywords=WINDOW
    ),
    "12, more than a warp": Step((9, 20), (9, 40), heads=12, heads_k=1),
    "5, pages of 64, d 256": Step((1, 60), (80, 60), page=64, heads=5, heads_k=1, d=256),
    "4, a power of two": Step((1, 70, 1), (90, 75, 33), heads=4, heads_k=1, d=128),
}
DENSE: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "8 heads of a group, d 256": ((2, 162, 180, 8, 1, 256), {"causal": True}),
    "4, three consumers": ((1, 260, 260, 8, 2, 64), {"causal": True, "softcap": 20.0}),
    "16, more keys": ((1, 130, 300, 16, 1, 128), {"causal": True}),
    "2, a window": ((1, 160, 160, 4, 2, 256), {"window": (20, 5)}),
    "4, no mask": ((2, 130, 200, 4, 1, 192), {}),
}


@pytest.fixture(autouse=True)
def one_multiprocessor(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it has enough tiles."""
    monkeypatch.setattr(device, "EMULATED_SMS", 1)


@pytest.mark.parametrize(("name", "place"), on_devices(STEPS))
def test_steps_are_right(name: str, place: str) -> None:
    step = STEPS[name]
    call = step.call(place)
    plan = Plan(call) if call.q.is_cuda else Plan(call, arch=MEASURED_ARCH)
    if not call.q.is_cuda:
        features = plan.recipe.features
        assert features.splits is SplitKind.WHOLE  # type: ignore[attr-defined]
        assert features.heads_together == step.heads // step.heads_k  # type: ignore[attr-defined]
    assert_right(call, *ran(plan, call, Settings(SCHEDULES[0])))


def dense(shape: tuple[int, ...], place: str, keywords: dict[str, Any]) -> Call:
    batch, queries, keys, heads, heads_k, d = shape
    torch.manual_seed(0)
    sizes = ((queries, heads), (keys, heads_k), (keys, heads_k))
    q, k, v = (torch.randn(batch, n, h, d).bfloat16().to(place) for n, h in sizes)
    sinks = torch.randn(heads).to(place)
    return Call(q, k, v, sinks=sinks, return_lse=True, **keywords)


@pytest.mark.parametrize(("name", "place"), on_devices(DENSE))
def test_sequences_of_one_length_are_right(name: str, place: str) -> None:
    shape, keywords = DENSE[name]
    call = dense(shape, place, keywords)
    plan = Plan(call) if call.q.is_cuda else Plan(call, arch=MEASURED_ARCH)
    assert plan.recipe.features.heads_together == shape[3] // shape[4]  # type: ignore[attr-defined]
    assert_right(call, *ran(plan, call, Settings(SCHEDULES[0])))


@pytest.mark.parametrize("order", list(TileOrder))
def test_every_order_has_the_tiles_of_all_groups(order: TileOrder) -> None:
    call = dense((3, 70, 70, 8, 2, 64), "cpu", {"causal": True})
    config = Plan(call, arch=MEASURED_ARCH).config
    assert isinstance(config, HopperForwardKernelConfig)
    mib = 1 if order is TileOrder.DYNAMIC else 0
    plain: dict[str, Any] = {}
    if order is TileOrder.ONE_EACH:
        plain = {"own_output": False, "prefetch_q": False}
    config = replace(config, tile_order=order, group_mib=mib, **plain)
    plan = Plan(call, config, arch=MEASURED_ARCH)
    assert plan.recipe.features.heads_together == 4  # type: ignore[attr-defined]
    tiles = 3 * 2 * -(-70 * 4 // config.B_r)
    assert plan.recipe.tiles == tiles
    if order is TileOrder.ONE_EACH:
        assert plan.recipe.steps[0].geometry.grid == (tiles, 1, 1)
    assert_right(call, *ran(plan, call, Settings(SCHEDULES[0])))


def test_consumers_that_are_skipped_have_rows_of_one_head() -> None:
    call = dense((1, 70, 70, 4, 1, 128), "cpu", {})
    config = Plan(call, arch=MEASURED_ARCH).config
    assert isinstance(config, HopperForwardKernelConfig)
    changes: dict[str, Any] = {"consumers": 2, "B_c": 64, "narrow_keys": 0}
    for skip, together in ((False, 4), (True, 1)):
        plan = Plan(call, replace(config, **changes, skip_empty=skip), arch=MEASURED_ARCH)
        assert plan.recipe.features.heads_together == together  # type: ignore[attr-defined]
