# SPDX-License-Identifier: Apache-2.0
"""Tiles that heads of a group share, in steps with so many tiles that no keys are split."""

from __future__ import annotations

import pytest

from flash_attention.arch import MEASURED_ARCH
from flash_attention.families.sm90.forward.features import SplitKind
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
