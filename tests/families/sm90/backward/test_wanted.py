# SPDX-License-Identifier: Apache-2.0
"""Some of dq, dk and dv: Hopper kernels neither compute nor store a dk or dv that nobody wants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention import attention
from flash_attention.arch import ARCHES, MEASURED_ARCH
from flash_attention.call.backward_call import Wanted
from flash_attention.compile import compile_to_ptx
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.family import SM90_BACKWARD
from flash_attention.families.sm90.backward.heuristic import heuristic
from flash_attention.families.sm90.backward.slots import Schedule
from flash_attention.launch.plan import Plan
from flash_attention.launch.plans import plan_for
from tests.backward_cases import assert_right, backward_of, emulated_backward
from tests.families.sm90.backward.test_heuristic import PROBLEM
from tests.feature_cases import Case
from tests.gate import EXHAUSTIVE

PARTS = [
    Wanted(dv=False),
    Wanted(dk=False),
    Wanted(dk=False, dv=False),
    Wanted(dq=False, dv=False),
    Wanted(dq=False, dk=False),
]
CAUSAL = Case("causal", 100, 150, 128, 128, 4, 2, causal=True)
PAIRED = Case("d 64, softcap", 100, 150, softcap=3.0, window=(60, 10))
PACKED = Case("packed", (40, 0, 90), (70, 10, 50), causal=True, dropout_p=0.3)
SPLIT = Case("d 256", 70, 90, 256, 192, 2, 1, causal=True)


def named(wanted: Wanted) -> str:
    return "+".join(name for name, on in wanted._asdict().items() if on)


@pytest.mark.parametrize("wanted", PARTS, ids=named)
@pytest.mark.parametrize(
    "asked",
    [
        *(pytest.param(case, id=case.name) for case in (CAUSAL, SPLIT)),
        *(pytest.param(case, id=case.name, marks=EXHAUSTIVE) for case in (PAIRED, PACKED)),
    ],
)
def test_an_emulated_hopper_kernel_computes_what_is_wanted(asked: Case, wanted: Wanted) -> None:
    call = backward_of(asked.make(), wanted)
    config = Plan(call, arch=ARCHES["sm_90"]).config
    assert isinstance(config, HopperBackwardKernelConfig)
    assert_right(emulated_backward(call, config, arch="sm_90").gradients, call)


@pytest.mark.parametrize("schedule", [Schedule.PAIRED, Schedule.SERIAL], ids=lambda s: s.name)
@pytest.mark.parametrize("wanted", PARTS[:3], ids=named)
def test_every_schedule_leaves_products_out(schedule: Schedule, wanted: Wanted) -> None:
    call = backward_of(CAUSAL.make(), wanted)
    config = replace(hopper(wanted=wanted), schedule=schedule)
    assert_right(emulated_backward(call, config, arch="sm_90").gradients, call)


def hopper(**change: Any) -> HopperBackwardKernelConfig:
    kernel = heuristic(replace(PROBLEM, causal=True, **change), MEASURED_ARCH)
    assert isinstance(kernel, HopperBackwardKernelConfig)
    return kernel


@pytest.mark.parametrize("d_head", [128, 256])
def test_a_gradient_that_is_left_out_has_no_products(d_head: int) -> None:
    config = hopper(d_head=d_head, d_v=d_head)
    products = []
    for wanted in (Wanted(), Wanted(dv=False), Wanted(dk=False, dv=False)):
        asked = Case("", 1, 1, d_head, d_head, 2, 2, causal=True).make("cpu", torch.bfloat16)
        plan = Plan(backward_of(asked, wanted), config, MEASURED_ARCH)
        (unit,) = {step.unit for step in plan.recipe.steps if "hopper_backward" in step.unit.name}
        ptx = compile_to_ptx(unit.source, arch=unit.target, name=unit.name).ptx
        products.append(ptx.count("wgmma.mma_async"))
    assert products[0] > products[1] > products[2]


def test_heads_are_not_split_unless_both_are_wanted() -> None:
    made = Case("", 256, 256, 128, 128, 64, 8, causal=True).make("cpu", torch.bfloat16)
    call = backward_of(made, Wanted(dv=False))
    assert Plan(call, arch=MEASURED_ARCH).recipe.arguments.head_splits == 1
    assert not any(feature.skips_dk or feature.skips_dv for feature in built())


def built() -> list[Any]:
    return [SM90_BACKWARD.resolve(hopper(), f) for f in SM90_BACKWARD.built_features()]


LONG = [
    Case("causal", 1000, 1500, 128, 128, 8, 2, batch=2, causal=True),
    Case("d 64", 2048, 2048, 64, 64, 4, 4),
    Case("d 256", 1500, 1500, 256, 256, 2, 1, causal=True),
    Case("packed", (700, 0, 1, 129), (600, 10, 900, 0), 128, 128, causal=True),
    Case("a window", 1000, 1000, 96, 96, 4, 2, window=(100, 30), softcap=20.0),
]


@pytest.mark.gpu
@pytest.mark.parametrize("wanted", PARTS, ids=named)
@pytest.mark.parametrize("asked", LONG, ids=lambda asked: asked.name)
@pytest.mark.parametrize("deterministic", [False, True])
def test_parts_on_a_gpu_are_right(asked: Case, wanted: Wanted, deterministic: bool) -> None:
    call = backward_of(asked.make("cuda"), wanted, deterministic=deterministic)
    plan = plan_for(call)
    assert isinstance(plan.config, HopperBackwardKernelConfig)
    assert_right(plan.run(call), call)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("frozen", ["q", "k", "v", "qk", "qv", "kv"])
def test_frozen_tensors_get_no_gradient(frozen: str, device: str) -> None:
    made = CAUSAL.make(device)
    leaves = {name: getattr(made, name).clone() for name in "qkv"}
    for name, tensor in leaves.items():
        tensor.requires_grad_(name not in frozen)
    attention(leaves["q"], leaves["k"], leaves["v"], causal=True).sum().backward()
    everything = [getattr(made, name).clone().requires_grad_() for name in "qkv"]
    attention(everything[0], everything[1], everything[2], causal=True).sum().backward()
    for name, other in zip("qkv", everything, strict=True):
        if name in frozen:
            assert leaves[name].grad is None
        else:
            # A pass without dq has another kernel, which rounds dS in another place.
            torch.testing.assert_close(leaves[name].grad, other.grad, rtol=0.03, atol=0.03)
