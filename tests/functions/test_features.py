# SPDX-License-Identifier: Apache-2.0
"""A function beside every other feature of kernels, against float64."""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import Function, attention, backward, forward, masks, scores
from flash_attention.call.backward_call import Gradients, Wanted
from flash_attention.call.call import Call
from flash_attention.launch.emulation import Settings
from flash_attention.reference.gradient_judge import GradientJudge
from ptx_emulator import SCHEDULES
from tests.devices import HOPPER_DEVICES, on_devices
from tests.functions.cases import BACKWARD, FORWARD, Run, in_families, kernels

pytestmark = pytest.mark.slow

HEADS = 4
IDS = torch.arange(400, dtype=torch.int32) // 45
SLOPES = torch.tensor([0.3, 0.1, -0.05, 0.0])
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])


def biased_documents(device: str) -> Function:
    """A score function and a mask function, with captured tensors and whole empty blocks."""
    slopes, ids = SLOPES.to(device), IDS.to(device)
    return Function(
        lambda score, batch, head, query, key: score * 0.75 - slopes[head] * abs(query - key),
        masks.documents(ids) | (lambda batch, head, query, key: key < 5),
    )


def of_heads_and_batches(device: str) -> Function:
    """A mask that differs from head to head and from batch to batch."""
    reach = torch.tensor([[40, 9, 90, 0], [3, 70, 20, 130]], device=device)
    return Function(mask=lambda batch, head, query, key: abs(query - key) <= reach[batch, head])


GROUPED: dict[str, Any] = {"heads": (HEADS, 2)}
FEATURES: dict[str, dict[str, Any]] = {
    "grouped heads": GROUPED | {"batch": 2},
    "more queries than keys": GROUPED | {"q_lengths": 140, "k_lengths": 70},
    "one query": GROUPED | {"q_lengths": 1, "k_lengths": 300},
    "no keys": GROUPED | {"k_lengths": 0},
    "packed, with empty sequences": GROUPED
    | {"q_lengths": (70, 0, 130, 3, 5), "k_lengths": (70, 40, 150, 0, 8)},
    "packed keys of other lengths": GROUPED | {"q_lengths": (100, 20), "k_lengths": (30, 200)},
    "used keys": GROUPED | {"q_lengths": 60, "k_lengths": 200, "batch": 2, "used": (150, 61)},
    "causal": GROUPED | {"causal": True},
    "window": GROUPED | {"window": (50, 20)},
    "softcap": GROUPED | {"softcap": 2.0},
    "sinks": GROUPED | {"sinks": SINKS, "wanted": Wanted(dsinks=True)},
    "dropout": GROUPED | {"dropout_p": 0.3, "rng_state": torch.tensor([5, 9])},
    "all of them": GROUPED
    | {
        "q_lengths": (70, 0, 130),
        "k_lengths": (90, 40, 150),
        "causal": True,
        "softcap": 3.0,
        "sinks": SINKS,
        "wanted": Wanted(dsinks=True),
    },
    "deterministic": GROUPED | {"deterministic": True},
}


ON_SM80 = (
    "no keys",
    "packed, with empty sequences",
    "used keys",
    "dropout",
    "all of them",
    "deterministic",
)


@pytest.mark.parametrize(("name", "family", "device"), in_families(FEATURES, ON_SM80))
def test_a_function_is_right_beside(name: str, family: str, device: str) -> None:
    run = Run(biased_documents, device, FEATURES[name], *kernels(family))
    run.check_forward()
    if name == "deterministic" and family == "sm_90":
        run = Run(biased_documents, device, FEATURES[name], backward=None)
    run.check_backward()


@pytest.mark.parametrize(("d", "family", "device"), in_families((80, 128, 160, 256), (160,)))
def test_head_dimensions_are_right(d: int, family: str, device: str) -> None:
    problem = GROUPED | {"d": (d, d)}
    first, second = kernels(family, d)
    if (family, d) == ("sm_90", 256):  # one consumer has too few registers
        first = first.replace("256, 1", "256, 2")
    chosen = second if family == "sm_80" else None
    Run(biased_documents, device, problem, first, chosen).check()


def tilted(device: str) -> Function:
    """Scores that grow with the distance, a mask beside them."""
    slopes = SLOPES.to(device)
    return Function(
        lambda score, batch, head, query, key: score + slopes[head] * (key - query),
        lambda batch, head, query, key: (query + key) % 97 != 3,
    )


TILTED = {name: FEATURES[name] for name in ("all of them", "used keys")}


@pytest.mark.parametrize(("name", "family", "device"), in_families(TILTED, ("all of them",)))
def test_tilted_scores_are_right_beside(name: str, family: str, device: str) -> None:
    Run(tilted, device, TILTED[name], *kernels(family)).check()


def signless(device: str) -> Function:
    """Distances without a sign under a causal mask."""
    return Function(scores.alibi(SLOPES.to(device)), masks.causal())


@pytest.mark.parametrize(("name", "device"), on_devices(["grouped heads", "used keys", "causal"]))
def test_distances_without_a_sign_are_right_under_a_causal_mask(name: str, device: str) -> None:
    Run(signless, device, FEATURES[name]).check()


def leaning(device: str) -> Function:
    """Scores that grow with the distance, of all keys."""
    slopes = SLOPES.to(device)
    return Function(lambda score, batch, head, query, key: score + slopes[head] * (key - query))


GUESSING = "hopper(BF16, 64, {}): tma+specialised+overlap+lazy_8+stale_max+dynamic_4"
SMALL, TALL = GUESSING.format("1, 32, 2"), GUESSING.format("2, 80, 2") + "+ping_pong+narrow_32"
# Queries and keys that leave blocks of which every row sees all.
OPEN: dict[str, dict[str, Any]] = {
    "many keys": GROUPED | {"k_lengths": 300, "batch": 2},
    "more queries than keys": GROUPED | {"q_lengths": 300, "k_lengths": 200},
    "heads of a group in a tile": GROUPED | {"q_lengths": 20, "k_lengths": 300},
    "causal": GROUPED | {"q_lengths": 300, "k_lengths": 300, "causal": True},
    "packed": GROUPED | {"q_lengths": (150, 0, 90), "k_lengths": (200, 30, 250), "causal": True},
    "sinks": GROUPED | {"k_lengths": 300, "sinks": SINKS},
}


@pytest.mark.parametrize(
    ("name", "config", "device"), on_devices(itertools.product(OPEN, (SMALL, TALL)))
)
def test_tilted_scores_are_right_in_kernels_that_guess_maxima(
    name: str, config: str, device: str
) -> None:
    Run(leaning, device, OPEN[name], config).check_forward()


@pytest.mark.parametrize(("config", "device"), on_devices([SMALL, TALL]))
def test_distances_without_a_sign_are_right_in_kernels_that_guess_maxima(
    config: str, device: str
) -> None:
    Run(signless, device, OPEN["causal"], config).check_forward()


PIECES = "hopper(BF16, 64, 3, 32, 2): tma+specialised+overlap+ping_pong+dynamic_4+narrow_16"
# None of them is computed by the built-in kernels.
MASKS: dict[str, Callable[[str], masks.Mask]] = {
    "causal": lambda _: masks.causal(2),
    "window": lambda _: masks.window(40, 2),
    "narrow window": lambda _: masks.window(3, 1),
    "sinks": lambda _: masks.sink_window(2, 40),
    "documents": lambda device: masks.causal() & masks.documents(IDS.to(device)),
}


@pytest.mark.parametrize(("name", "device"), on_devices(MASKS))
def test_pieces_of_tiles_pass_over_blocks(name: str, device: str) -> None:
    problem = {"q_lengths": 300, "k_lengths": 300, "causal": name == "sinks"}
    Run(lambda to: Function(mask=MASKS[name](to)), device, problem, PIECES).check_forward()


@pytest.mark.parametrize("device", HOPPER_DEVICES)
def test_kernels_that_attention_chooses_are_right(device: str) -> None:
    problem = GROUPED | {"q_lengths": 300, "k_lengths": 300}
    Run(biased_documents, device, problem, forward=None, backward=None).check()


@pytest.mark.parametrize(("heads", "family", "device"), in_families((HEADS, 2), (HEADS, 2)))
def test_masks_of_heads_and_batches_are_right(heads: int, family: str, device: str) -> None:
    problem = {"heads": (HEADS, heads), "batch": 2}
    Run(of_heads_and_batches, device, problem, *kernels(family)).check()


@pytest.mark.parametrize(("keys", "family", "device"), in_families((1500,), (1500,)))
def test_lists_of_many_blocks_are_right(keys: int, family: str, device: str) -> None:
    """A warp finds 32 blocks of a list at a time. These tiles have 47 blocks, empty, full and
    partial ones in turn."""
    problem = {"q_lengths": 70, "k_lengths": keys, "heads": (2, 2)}

    def see(batch: Any, head: Any, query: Any, key: Any) -> Any:
        block = key // 32
        return (block % 7 != 3) & ((block % 3 != 1) | (key % 9 != 0))

    Run(lambda on: Function(mask=see), device, problem, *kernels(family)).check_forward()
    turned = {"q_lengths": 2300, "k_lengths": 70, "heads": (1, 1)}
    dilated = Run(lambda on: Function(mask=masks.dilated(129)), device, turned, *kernels(family))
    dilated.check_backward()


@pytest.mark.parametrize(("length", "family", "device"), in_families((128,), (128,)))
def test_empty_blocks_are_not_visited(length: int, family: str, device: str) -> None:
    """All rows of the second document are NaN, and so are products with them."""
    torch.manual_seed(0)
    q, k, v, do = torch.randn(4, 1, 2 * length, 2, 64).to(device, torch.bfloat16)
    for tensor in (q, k, v, do):
        tensor[:, length:] = math.nan
    function = Function(mask=masks.documents(torch.arange(2 * length, device=device) // length))
    configs = kernels(family)
    out, lse = forward(configs[0], q, k, v, function=function, return_lse=True)
    judge = GradientJudge(Call(*(t[:, :length] for t in (q, k, v))), do[:, :length])
    for deterministic in (False, True) if family == "sm_80" else (False,):
        found = backward(
            *(configs[1], do, q, k, v, out, lse), function=function, deterministic=deterministic
        )
        own = Gradients(*(None if each is None else each[:, :length] for each in found))
        for name, check in judge.check(own).items():
            assert check.ok, f"{name}: {check}"


@pytest.mark.parametrize(("queries", "family", "device"), in_families((100,), (100,)))
def test_rows_after_the_last_query_do_not_matter(queries: int, family: str, device: str) -> None:
    """A function makes infinities of them, and the mask, which is full, does not hide them."""

    def make(on: str) -> Function:
        ends = torch.tensor([queries, 37], device=on)
        return Function(
            lambda score, batch, head, query, key: torch.where(
                query < ends[batch], score, math.inf
            ),
            masks.causal(1000),
        )

    problem = GROUPED | {"q_lengths": (queries, 37), "k_lengths": (128, 256)}
    Run(make, device, problem, *kernels(family)).check()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_of_the_emulator_find_nothing(schedule: str) -> None:
    run = Run(biased_documents, problem=GROUPED, settings=Settings(schedule=schedule, seed=3))
    run.check()


@pytest.mark.parametrize(("with_sinks", "family", "device"), in_families((False, True), (True,)))
def test_rows_without_keys_are_zero(with_sinks: bool, family: str, device: str) -> None:
    def make(on: str) -> Function:
        return Function(
            scores.softcap(3.0), lambda batch, head, query, key: (query < 40) & (query >= key)
        )

    problem = GROUPED | ({"sinks": SINKS} if with_sinks else {})
    run = Run(make, device, problem, *kernels(family))
    output, lse = run.check_forward()
    assert torch.equal(output[:, 40:], torch.zeros_like(output[:, 40:]))
    expected = SINKS if with_sinks else torch.full((HEADS,), -math.inf)
    assert torch.equal(lse[0, :, 40:].cpu(), expected[:, None].expand(HEADS, 60))
    gradients = run.check_backward()
    assert gradients.dq is not None
    assert gradients.dk is not None
    assert gradients.dv is not None
    assert torch.equal(gradients.dq[:, 40:], torch.zeros_like(gradients.dq[:, 40:]))
    for gradient in (gradients.dk, gradients.dv):
        assert torch.equal(gradient[:, 40:], torch.zeros_like(gradient[:, 40:]))


def test_plans_that_are_kept_keep_no_captured_tensor() -> None:
    q, k, v = (torch.randn(1, 64, 2, 32, dtype=torch.bfloat16).requires_grad_() for _ in range(3))

    def run() -> weakref.ref[Tensor]:
        bias = torch.randn(2, 64, 64)
        function = Function(scores.additive_bias(bias))
        kernels = FORWARD.format(32), BACKWARD.format(32)
        out = attention(q, k, v, function=function, config=kernels[0], backward_config=kernels[1])
        out.sum().backward()
        return weakref.ref(bias)

    captured = run()
    gc.collect()
    assert captured() is None
