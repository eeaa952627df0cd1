# SPDX-License-Identifier: Apache-2.0
"""Where scores fall with the distance, tiles visit the nearest keys first. A kernel that guesses
maxima then computes no scores again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from flash_attention import Function, masks, scores
from flash_attention.families.sm90.forward import family
from flash_attention.launch.emulation import Settings, emulate_plan
from flash_attention.launch.plan import Plan
from tests.devices import HOPPER_DEVICES, on_devices
from tests.functions.cases import FORWARD, Run

pytestmark = pytest.mark.slow

SLOPES = (4.0, 0.5)
SHORT = "hopper(BF16, 64, {}): tma+specialised+overlap+own_output+lazy_8+stale_max"
GUESSING = SHORT.format("1, 32, 2") + "+dynamic_4"
TALL = SHORT.format("3, 64, 2") + "+ping_pong+persistent+narrow_32"
CONFIGS = {"small": FORWARD.format(64), "guessing": GUESSING, "tall": TALL}
LENGTHS = ((100, 140), (300, 256), (70, 20), (400, 130))


def alibi(device: str, slopes: tuple[float, float] = SLOPES) -> Function:
    return Function(scores.alibi(torch.tensor(slopes, device=device)))


def masked(device: str, slopes: tuple[float, float] = SLOPES) -> Function:
    """Whole blocks on both sides of queries, and some that are partial."""
    ids = (torch.arange(400, device=device) // 290).int()
    return Function(scores.alibi(torch.tensor(slopes, device=device)), masks.documents(ids))


@pytest.mark.parametrize(
    ("config", "lengths", "device"),
    on_devices([(config, lengths) for config in CONFIGS for lengths in LENGTHS]),
)
def test_all_lengths_are_right(config: str, lengths: tuple[int, int], device: str) -> None:
    problem = {"q_lengths": lengths[0], "k_lengths": lengths[1], "heads": (2, 1)}
    Run(alibi, device, problem, CONFIGS[config]).check_forward()


@pytest.mark.parametrize("device", HOPPER_DEVICES)
def test_lists_are_right(device: str) -> None:
    Run(masked, device, {"q_lengths": 300, "k_lengths": 400}, TALL).check_forward()


@pytest.mark.parametrize("make", [alibi, masked])
def test_no_scores_are_computed_again(
    make: Callable[..., Function], monkeypatch: pytest.MonkeyPatch
) -> None:
    fewest = _products(make, (0.0, 0.0))
    assert _products(make, (0.7, 0.7)) == fewest
    monkeypatch.setattr(family, "falls_with_distance", lambda program: False)
    assert _products(make, (0.7, 0.7)) > fewest


def _products(make: Callable[..., Function], slopes: tuple[float, float]) -> int:
    problem = {"q_lengths": 200, "k_lengths": 256}
    call = Run(lambda device: make(device, slopes), problem=problem).case().call.call
    call = call._replace(out=None)
    return emulate_plan(Plan(call, GUESSING), call, Settings()).counters.tensor_operations
