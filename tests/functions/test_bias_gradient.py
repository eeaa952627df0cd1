# SPDX-License-Identifier: Apache-2.0
"""Gradients of biases that leave as tiles of dS, against float64 autograd of the formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import Function, masks
from flash_attention.autograd import gathering_by_kernels
from flash_attention.call.backward_call import ALL, Wanted
from flash_attention.call.call import Call as Forward
from flash_attention.families import recipe
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.slots import Derivative
from flash_attention.kernel_configs import parse_kernel_config
from flash_attention.launch.emulation import Settings
from flash_attention.program.nodes import How
from tests.devices import on_devices
from tests.families.sm90.backward.cases import config
from tests.functions.cases import BACKWARD, FORWARD
from tests.functions.test_captured_gradients import (
    BATCH,
    HEADS,
    KEYS,
    QUERIES,
    Call,
    D,
    Learned,
)

PLANE = (QUERIES, KEYS)
ORDERED = config(D, stages=1, dq="ordered", schedule="serial", order="dynamic_8", tile="64, 128")
PAIRS = config(D, derivative="pairs", schedule="paired", order="dynamic_8")
TALLER = (QUERIES + 5, KEYS + 3)  # than the scores
OF_FLOAT32 = 2**-16  # errors of sums and of exponentials, of the largest number
ROUNDINGS = {Derivative.EXACT: 1, Derivative.ROUNDED: 2, Derivative.PAIRS: 3}
NARROW = (5, 30)  # the last queries see none of the first keys


def learned(*shape: int, read: Callable[..., Any], **others: Any) -> Learned:
    """A bias that is added to scores."""
    others = {"dtype": torch.bfloat16} | others
    return Learned(lambda bias: lambda s, *at: s + read(bias, *at), [shape], **others)


def of_all(bias: Tensor, b: Any, h: Any, q: Any, k: Any) -> Any:
    return bias[b, h, q, k]


def of_heads(bias: Tensor, b: Any, h: Any, q: Any, k: Any) -> Any:
    return bias[h, q, k]


CASES: dict[str, tuple[Learned, str, How]] = {
    "of all scores": (
        learned(BATCH, HEADS, *PLANE, read=of_all, options={"window": NARROW}),
        BACKWARD.format(D),
        How.TILES,
    ),
    "larger than the scores": (
        learned(HEADS, BATCH + 1, *TALLER, read=lambda t, b, h, q, k: t[h, b, q, k]),
        BACKWARD.format(D),
        How.TILES,
    ),
    "of heads": (
        learned(HEADS + 1, *TALLER, read=of_heads, options={"window": NARROW}),
        BACKWARD.format(D),
        How.TILE_SUMS,
    ),
    "for all, beside a mask": (
        learned(
            *PLANE,
            read=lambda t, b, h, q, k: t[q, k],
            dtype=torch.float16,
            mask=masks.window(5, 40) | (lambda b, h, q, k: (q < 9) & (b == 0)),
        ),
        PAIRS,
        How.TILE_SUMS,
    ),
    "of another type": (
        learned(BATCH, HEADS, *PLANE, read=of_all, dtype=torch.float16),
        ORDERED,
        How.TILE_SUMS,
    ),
    "with dropout": (
        learned(
            *(1, HEADS, *PLANE),
            read=lambda t, b, h, q, k: t[0, h // 2, q, k],
            options={"dropout_p": 0.25, "rng_state": torch.tensor([7, 4])},
        ),
        BACKWARD.format(D),
        How.TILE_SUMS,
    ),
}


def call_of(case: Learned, device: str = "cpu") -> Call:
    """The call of a case. Rows of its bias begin at multiples of 16 bytes."""
    call = Call(case, device)
    (given,) = call.captured
    rows = torch.zeros(*given.shape[:-1], -(-given.shape[-1] // 8) * 8, device=device)
    rows[..., : given.shape[-1]] = given.detach()
    call.captured = [rows.to(given.dtype)[..., : given.shape[-1]].requires_grad_()]
    return call


def how(call: Call, given: str | None, wanted: Wanted = ALL, **options: Any) -> How:
    """How the gradient of the bias is computed."""
    function = Function(call.case.change(*call.captured), call.case.mask)
    forward = Forward(call.q, call.k, call.v, function=function, **(call.options | options))
    made = gathering_by_kernels(forward, function.trained(), given, wanted, deterministic=False)
    return made.program.gathered[0].how


def roundings(kernel: Any) -> int:
    """How often a kernel rounds dS = P (dP - delta) to 16 bits: the product, and before it P, and
    the difference. A kernel that is not given is one that rounds all three, or fewer."""
    if kernel is None:
        return ROUNDINGS[Derivative.PAIRS]
    given = parse_kernel_config(kernel) if isinstance(kernel, str) else kernel
    assert isinstance(given, HopperBackwardKernelConfig)
    return ROUNDINGS[given.derivative]


def check_roundings(call: Call, found: Tensor, out: Tensor, of_ds: int) -> None:
    """Assert that each element is off by no more than its roundings: so many of each dS, and one of
    their sum. `out` is the output that the backward pass got, so that errors of the forward pass do
    not count. The factor of the weights that dropout keeps is in dS, whose roundings grow with it.
    """
    exact = call.by_formula(torch.float64, out)[0]
    sizes = call.by_formula(torch.float64, out, torch.abs)[0]
    assert (found.dtype, found.shape) == (call.captured[0].dtype, exact.shape)
    unit, unit_of_sum = (torch.finfo(t.dtype).eps / 2 for t in (call.q, found))
    sums = ((1 + unit) ** of_ds - 1) * sizes
    allowed = sums + unit_of_sum * (exact.abs() + sums) + OF_FLOAT32 * sizes.max()
    share = ((found.double() - exact).abs() / allowed).max().item()
    assert share <= 1, f"an element is off by {share:.3f} times its roundings"


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_tiles_of_ds_are_the_gradient(name: str) -> None:
    case, kernel, expected = CASES[name]
    call = call_of(case)
    assert how(call, kernel) is expected
    (found,) = call.emulated(kernel)
    check_roundings(call, found, call.forward_pass()[0], roundings(kernel))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [BACKWARD.format(D), ORDERED], ids=["added", "ordered"])
def test_a_small_workspace_has_some_of_the_keys_at_a_time(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_of(learned(HEADS, *TALLER, read=of_heads, options={"causal": True}))
    (whole,) = call.emulated(kernel)
    check_roundings(call, whole, call.forward_pass()[0], roundings(kernel))
    monkeypatch.setattr(recipe, "workspace_bytes", lambda: 1)
    (parts,) = call.emulated(kernel, settings=Settings(schedule="random", seed=2))
    assert torch.equal(whole, parts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "device"), on_devices(["of heads"], [n for n in CASES if n != "of heads"])
)
def test_autograd_gets_them(name: str, device: str) -> None:
    call = call_of(CASES[name][0], device)
    emulated = {"config": FORWARD.format(D), "backward_config": BACKWARD.format(D)}
    kernels = emulated if device == "cpu" else {}
    call.q.requires_grad_()
    for deterministic in (False, True)[: 1 + (device == "cuda")]:
        out = call.attend(**kernels, deterministic=deterministic)
        _, found = torch.autograd.grad(out, (call.q, *call.captured), call.do)
        check_roundings(call, found, out.detach(), roundings(kernels.get("backward_config")))


@pytest.mark.usefixtures("no_compile")
def test_lanes_add_what_is_no_tile_of_ds() -> None:
    call = call_of(CASES["of heads"][0])
    assert how(call, None) is How.TILE_SUMS
    assert how(call, None, softcap=3.0) is How.ADD
    assert how(call, None, Wanted(dq=False)) is How.ADD
    assert how(call, config(D, dq="staged")) is How.ADD
    factor = learned(HEADS, *PLANE, read=lambda t, b, h, q, k: 2 * t[h, q, k])
    assert how(call_of(factor), None) is How.ADD
    unaligned = learned(HEADS, *PLANE, read=of_heads)
    assert how(Call(unaligned, "cpu"), None) is How.ADD
    precise = learned(HEADS, *PLANE, read=of_heads, dtype=torch.float32)
    assert how(call_of(precise), None) is How.ADD
