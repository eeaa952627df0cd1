# SPDX-License-Identifier: Apache-2.0
"""FP8 kernels: right numbers, and nothing found by the emulator, whatever the order of warps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.families.config import KernelConfig
from flash_attention.launch.emulation import Settings
from flash_attention.launch.plan import Plan
from tests.devices import on_devices, ran
from tests.families.sm90.fp8.cases import (
    CASES,
    LINEAR,
    OVERLAPPED,
    PLAIN,
    SERIAL,
    Case,
    assert_right,
    most_rms,
    relative_rms,
)
from tests.gate import in_turn, one_in


def computed(
    config: KernelConfig, call: Call, schedule: str = "lockstep"
) -> tuple[Tensor, Tensor | None]:
    """The results of a call on its device."""
    if config.dtype.to_torch_dtype() != torch.bfloat16:
        call = call._replace(out=torch.empty_like(call.q, dtype=config.dtype.to_torch_dtype()))
    return ran(Plan(call, config), call, Settings(schedule))


@pytest.mark.parametrize(("name", "device"), on_devices(one_in(3, CASES, 1)))
def test_the_output_and_its_lse_are_right(name: str, device: str, schedule: str) -> None:
    config, case = CASES[name]
    call = case.call(config.d_head, device)
    assert_right(call, *computed(config, call, schedule), most_rms(config))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("causal", "depth-first"),
        ("window", "random"),
        ("serial", "depth-first"),
        ("d 256, causal, sharp", "random"),
    ],
)
def test_they_are_right_in_every_order_of_warps(name: str, schedule: str) -> None:
    config, case = CASES[name]
    call = case.call(config.d_head)
    assert_right(call, *computed(config, call, schedule))


@pytest.mark.parametrize(
    ("config", "scale"), in_turn([OVERLAPPED, SERIAL, LINEAR, PLAIN], [1e3, 1e9, 1e-9, 0.0])
)
def test_scores_of_any_magnitude_are_right(config: KernelConfig, scale: float) -> None:
    case = Case(70, 330, scale=scale, keywords=(("causal", True),))
    call = case.call(config.d_head)
    out, lse = computed(config, call)
    assert_right(call, out, lse)


def test_whole_scores_of_a_large_magnitude_are_right() -> None:
    call = Case(70, 330, scale=1e9, keywords=(("causal", True),), whole=True).call(128)
    assert_right(call, *computed(OVERLAPPED, call))


def test_row_sums_in_float32_have_an_exact_lse() -> None:
    call = Case(70, 330).call(128)
    _, lse = computed(PLAIN, call)
    exact = Case(70, 330).call(128)
    wanted = torch.logsumexp(_scores(exact), dim=-1)
    assert lse is not None
    assert torch.allclose(lse.double(), wanted, atol=1e-5)


def _scores(call: Call) -> Tensor:
    assert call.q_descale is not None
    assert call.k_descale is not None
    q = call.q.double().transpose(1, 2) * call.q_descale[0, 0]
    k = call.k.double().transpose(1, 2) * call.k_descale[0, 0]
    scores: Tensor = q @ k.transpose(2, 3) / call.q.shape[-1] ** 0.5
    return scores


@pytest.mark.parametrize("config", [OVERLAPPED, LINEAR], ids=str)
@pytest.mark.parametrize("key", [90, 100])  # in a group of 16 keys with exact weights, and linear
def test_nan_reaches_the_rows_that_see_it_and_no_other(config: KernelConfig, key: int) -> None:
    call = Case(130, 130, keywords=(("causal", True),)).call(128)
    k = call.k.float()
    k[:, key] = torch.nan
    call = call._replace(k=k.to(call.k.dtype))
    out, _ = computed(config, call)
    assert out[:, key:].isnan().all()
    assert not out[:, :key].isnan().any()


def test_nan_in_keys_beyond_the_last_is_not_read() -> None:
    """Keys and values of the next sequence follow in memory."""
    call = Case(70, 130, batch=2).call(128)
    k, v = call.k.float(), call.v.float()
    k[1], v[1] = torch.nan, torch.nan
    dirty = call._replace(k=k.to(call.k.dtype), v=v.to(call.v.dtype))
    assert torch.equal(computed(OVERLAPPED, dirty)[0][0], computed(OVERLAPPED, call)[0][0])


def test_promotion_and_the_place_of_q_change_no_weight() -> None:
    call = Case(70, 700).call(128)
    one, _ = computed(OVERLAPPED, call)
    others = (
        replace(OVERLAPPED, promote_blocks=0),
        replace(OVERLAPPED, q_in_registers=False),
        replace(OVERLAPPED, overlap=False),
        replace(OVERLAPPED, q_buffers=2),
    )
    for other in others:
        assert torch.allclose(computed(other, call)[0], one, rtol=2**-7, atol=1e-6), other


def test_the_output_may_be_fp16() -> None:
    call = Case(70, 130).call(128)
    out, _ = computed(PLAIN, call)
    assert out.dtype == torch.float16
    assert relative_rms(call, out) <= 3e-2
