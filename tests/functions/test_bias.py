# SPDX-License-Identifier: Apache-2.0
"""Scores with a bias that the copy engine loads beside K, and what lanes read instead, against
float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import Function, masks, scores
from flash_attention.call.call import Call
from flash_attention.launch.emulation import Settings
from flash_attention.launch.plan import Plan
from tests.devices import HOPPER_DEVICES, on_devices
from tests.functions.cases import FORWARD, Make, Run

pytestmark = pytest.mark.slow

HEADS = 4
QUERIES, KEYS = 100, 140
PROBLEM: dict[str, Any] = {
    "q_lengths": QUERIES,
    "k_lengths": KEYS,
    "heads": (HEADS, 2),
    "batch": 2,
}
TALL = "hopper(BF16, 64, 3, 64, 2): tma+specialised+ping_pong+overlap+dynamic_4+lazy_8+stale_max"


def bias(device: str, *planes: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A bias whose rows begin at multiples of 16 bytes, with NaN between them."""
    generator = torch.Generator().manual_seed(len(planes))
    whole = torch.full((*planes, QUERIES, -(-KEYS // 8) * 8), torch.nan)
    whole[..., :KEYS] = 2 * torch.randn(*planes, QUERIES, KEYS, generator=generator)
    return whole.to(device, dtype)[..., :KEYS]


def reading(
    *planes: int,
    change: Callable[..., Any],
    view: Callable[[Tensor], Tensor] = lambda whole: whole,
    mask: Any = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Make:
    """A function that changes scores by an element of a bias."""

    def make(device: str) -> Function:
        of = view(bias(device, *planes, dtype=dtype))
        return Function(lambda s, b, h, q, k: change(of, s, b, h, q, k), mask)

    return make


def plan(run: Run) -> Plan:
    return Plan(run.case().call.call._replace(out=None, return_lse=True), run.forward)


def loads(run: Run) -> bool:
    """Whether TMA loads the bias, and no lane reads it."""
    recipe = plan(run).recipe
    kernel = recipe.steps[recipe.main]
    assert ("read_bf16" in kernel.unit.source) is ("bias" not in kernel.maps)
    return "bias" in kernel.maps


def backward_loads(run: Run) -> bool:
    steps = Plan(run.case().call, run.backward).recipe.steps
    return any("bias" in step.maps for step in steps)


def add_to_all(of: Tensor, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + of[b, h, q, k]


def add(of: Tensor, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + of[h, q, k]


added = reading(HEADS, change=add)
grown = reading(HEADS, change=lambda of, s, b, h, q, k: s + 20 * of[h, q, k])
BIASES: dict[str, tuple[Make, dict[str, Any]]] = {
    "of batches and heads": (
        reading(2, HEADS, change=lambda of, s, b, h, q, k: 0.5 * s + 2 * of[b, h, q, k]),
        {},
    ),
    "of heads, causal": (reading(HEADS, change=add), {"causal": True}),
    "of pairs of heads": (
        reading(2, change=lambda of, s, b, h, q, k: s + of[h // 2, q, k]),
        {"window": (30, 20)},
    ),
    "for all": (reading(change=lambda of, s, b, h, q, k: s + of[q, k]), {"softcap": 2.0}),
    "expanded to batches": (
        reading(HEADS, change=add_to_all, view=lambda of: of.expand(2, -1, -1, -1)),
        {},
    ),
    "expanded to heads": (
        reading(2, 1, change=add_to_all, view=lambda of: of.expand(-1, HEADS, -1, -1)),
        {},
    ),
    "not added": (reading(change=lambda of, s, b, h, q, k: s * torch.exp(of[q, k])), {}),
    "larger than the scores": (
        reading(2, HEADS, change=add_to_all),
        {"q_lengths": 65, "k_lengths": 33},
    ),
    "beside a mask": (
        reading(HEADS, change=add, mask=lambda b, h, q, k: (q - k).abs() < 40),
        {},
    ),
}


@pytest.mark.parametrize(("name", "device"), on_devices(BIASES))
def test_a_bias_is_right(name: str, device: str) -> None:
    make, changes = BIASES[name]
    run = Run(make, device, PROBLEM | changes)
    assert loads(run)
    run.check_forward()


BACKWARD_PASSES = ("of batches and heads", "expanded to heads", "not added", "beside a mask")


@pytest.mark.parametrize(("name", "device"), on_devices(BACKWARD_PASSES))
def test_gradients_of_scores_with_a_bias_are_right(name: str, device: str) -> None:
    make, changes = BIASES[name]
    run = Run(make, device, PROBLEM | changes)
    assert backward_loads(run)
    run.check_backward()


@pytest.mark.parametrize(("d", "device"), on_devices((64, 128)))
def test_backward_kernels_that_attention_chooses_load_a_bias(d: int, device: str) -> None:
    run = Run(added, device, PROBLEM | {"d": (d, d)}, backward=None)
    assert backward_loads(run)
    run.check_backward()


@pytest.mark.parametrize("device", HOPPER_DEVICES)
def test_a_bias_of_float16_is_right(device: str) -> None:
    run = Run(reading(HEADS, change=add, dtype=torch.float16), device, PROBLEM)
    assert "bias" in plan(run).recipe.steps[0].maps
    run.check_forward()


def masked_by_itself(device: str) -> Function:
    of = bias(device, HEADS)
    return Function(lambda s, b, h, q, k: s + of[h, q, k], lambda b, h, q, k: of[h, q, k] > -1)


@pytest.mark.parametrize("device", HOPPER_DEVICES)
def test_a_mask_may_read_the_bias(device: str) -> None:
    run = Run(masked_by_itself, device, PROBLEM)
    assert loads(run)
    assert not backward_loads(run)
    run.check_forward()
    run.check_backward()


@pytest.mark.parametrize("device", HOPPER_DEVICES)
def test_consumers_read_their_own_rows(device: str) -> None:
    """Scores are computed again, too, where the bias makes the largest ones grow."""
    run = Run(grown, device, PROBLEM, TALL)
    assert loads(run)
    run.check_forward()


@pytest.mark.parametrize("schedule", ["random", "depth-first"])
def test_the_order_of_warps_does_not_matter(schedule: str) -> None:
    run = Run(added, "cpu", PROBLEM | {"batch": 1, "heads": (1, 1)}, TALL)
    replace(run, settings=Settings(schedule=schedule, seed=3)).check_forward()


@pytest.mark.parametrize(("d", "device"), on_devices((40, 128, 256)))
def test_kernels_that_attention_chooses_load_a_bias(d: int, device: str) -> None:
    run = Run(added, device, PROBLEM | {"d": (d, d)}, forward=None)
    assert loads(run)
    run.check_forward()


SMALL = FORWARD.format(64)
PACKED = {"q_lengths": (70, 30), "k_lengths": (60, 90), "batch": 1}
FULL = "hopper(BF16, 64, 3, 128, 3): tma+specialised+dynamic_4"
LANES: dict[str, tuple[Make, dict[str, Any], str]] = {
    "not aligned": (reading(HEADS, change=add, view=Tensor.contiguous), {}, SMALL),
    "packed sequences": (added, PACKED, SMALL),
    "no room in shared memory": (added, {}, FULL),
}


@pytest.mark.parametrize(("name", "device"), on_devices(LANES))
def test_lanes_read_what_cannot_be_loaded(name: str, device: str) -> None:
    make, changes, config = LANES[name]
    run = Run(make, device, PROBLEM | changes, config)
    assert not loads(run)
    run.check_forward()


def test_a_bias_that_is_too_small_is_read_by_lanes() -> None:
    """An index past the end has the nearest element, where nothing checks it."""
    q, k = (torch.empty(2, n, HEADS, 64, dtype=torch.bfloat16) for n in (QUERIES, KEYS + 1))
    for keys, is_loaded in ((k, False), (k[:, :-1], True)):
        call = Call(q, keys, keys, function=added("cpu"))
        assert ("bias" in Plan(call, SMALL).recipe.steps[0].maps) is is_loaded


@pytest.mark.parametrize("device", HOPPER_DEVICES)
def test_additive_bias_is_loaded(device: str) -> None:
    run = Run(
        lambda to: Function(scores.additive_bias(bias(to, 1, 1)), masks.causal()), device, PROBLEM
    )
    assert loads(run)
    run.check_forward()
