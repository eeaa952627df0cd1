# SPDX-License-Identifier: Apache-2.0
"""Sinks that are infinite or as large as float32 goes, also where a row sees no key, and what the
gradient of a sink is exact to."""

from __future__ import annotations

import math

import pytest
import torch

from flash_attention import attention
from flash_attention.call.backward_call import BackwardCall, Wanted
from flash_attention.call.call import Call
from flash_attention.families.config import KernelConfig
from flash_attention.families.passes import Pass
from flash_attention.kernel_configs import DType
from flash_attention.ladder import get_ladder
from flash_attention.launch.compute import compute_gradients
from flash_attention.launch.plans import plan_for
from flash_attention.reference.formula import evaluate
from flash_attention.reference.gradients import evaluate_gradients
from tests.devices import DEVICES

SINKS = {
    "-inf": (-math.inf, -math.inf),
    "mixed": (-math.inf, 0.5),
    "1e30": (1e30, -1e30),
    "1e38": (1e38, -1e38),
}


def asked(sinks: tuple[float, float], device: str, seq_q: int = 200) -> BackwardCall:
    """A causal call of 40 keys, of which only the last 40 queries see one, with gradients of its
    output and of its lse."""
    random = torch.Generator().manual_seed(5)
    q, do = (torch.randn(1, seq_q, 2, 64, generator=random) for _ in range(2))
    k, v = (torch.randn(1, 40, 2, 64, generator=random) for _ in range(2))
    dlse = torch.randn(1, 2, seq_q, generator=random).to(device)
    q, k, v, do = (t.to(device, torch.bfloat16) for t in (q, k, v, do))
    call = Call(q, k, v, sinks=torch.tensor(sinks, device=device), causal=True, return_lse=True)
    out, lse = evaluate(call, torch.float64, lse=True)
    wanted = Wanted(dsinks=True)
    return BackwardCall(do, call._replace(out=out.to(q.dtype)), lse.float(), dlse, wanted)


def assert_right(backward: BackwardCall, config: KernelConfig | None) -> None:
    if config is None:
        gradients = compute_gradients(backward)
    else:
        gradients = plan_for(backward, config).run(backward)
    exact = evaluate_gradients(
        backward._replace(lse=evaluate(backward.call, torch.float64, lse=True)[1]), torch.float64
    )
    for mine, other in zip(gradients, exact, strict=True):
        assert mine is not None
        assert other is not None
        torch.testing.assert_close(mine.double(), other, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SINKS)
def test_the_output_is_right(name: str, device: str) -> None:
    call = asked(SINKS[name], device).call._replace(out=None)
    out, lse = attention(call.q, call.k, call.v, sinks=call.sinks, causal=True, return_lse=True)
    _assert_output(call, out, lse)


@pytest.mark.parametrize("number", [15, 26])
@pytest.mark.parametrize("name", SINKS)
def test_the_output_of_a_rung_is_right(name: str, number: int) -> None:
    call = asked(SINKS[name], "cpu").call._replace(out=None)
    config = get_ladder(DType.BF16, 64)[number - 1].config
    result = plan_for(call, config).run(call)
    assert isinstance(result, tuple)
    _assert_output(call, *result)


def _assert_output(call: Call, out: torch.Tensor, lse: torch.Tensor) -> None:
    exact, exact_lse = evaluate(call, torch.float64, lse=True)
    assert float(out[:, :160].abs().max()) == 0  # these rows see no key
    torch.testing.assert_close(out.double(), exact, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SINKS)
def test_gradients_are_right(name: str, device: str) -> None:
    assert_right(asked(SINKS[name], device), None)


@pytest.mark.parametrize("number", [10, 16, 20])
@pytest.mark.parametrize("names", [("-inf", "1e38"), ("mixed", "1e30")], ids="-".join)
def test_gradients_of_a_rung_are_right(names: tuple[str, str], number: int) -> None:
    config = get_ladder(DType.BF16, 64, pass_=Pass.BACKWARD)[number - 1].config
    for name in names:
        assert_right(asked(SINKS[name], "cpu"), config)


@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("number", [10, 20])
def test_the_error_of_a_gradient_is_that_of_the_stored_output(number: int, softcap: float) -> None:
    given = asked((0.5, 2.0), "cpu", seq_q=40)
    call = given.call._replace(softcap=softcap, out=None)
    exact, lse = evaluate(call, torch.float64, lse=True)
    stored = exact.to(torch.bfloat16)
    backward = given._replace(call=call._replace(out=stored), lse=lse.float(), dlse=None)
    config = get_ladder(DType.BF16, 64, pass_=Pass.BACKWARD)[number - 1].config
    mine = plan_for(backward, config).run(backward).dsinks
    of_stored, of_exact = (
        evaluate_gradients(
            backward._replace(call=call._replace(out=out), lse=lse), torch.float64
        ).dsinks
        for out in (stored, exact)
    )
    assert mine is not None
    assert of_stored is not None
    assert of_exact is not None
    torch.testing.assert_close(mine.double(), of_stored, rtol=1e-5, atol=1e-5)
    weights = torch.exp(torch.tensor((0.5, 2.0))[:, None] - lse)[0]
    rounding = (backward.do.double() * (stored.double() - exact)).abs().sum(-1)[0].T
    assert bool(((mine - of_exact).abs() <= (weights * rounding).sum(-1) + 1e-5).all())
