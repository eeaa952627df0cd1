# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from flash_attention.arch import MEASURED_ARCH
from flash_attention.call.features import CAUSAL
from flash_attention.compile import compile_kernel
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.family import SM90_BACKWARD
from flash_attention.families.sm90.backward.heuristic import heuristic
from flash_attention.families.sm90.backward.rungs import base, causal_steps, steps
from flash_attention.families.sm90.backward.slots import QueryGradient
from flash_attention.kernel_configs import DType
from tests.families.sm90.backward.test_heuristic import problem
from tests.gate import one_in

SPILLED = 480  # bytes a thread: of numbers that a tile needs once, and of a persistent producer


def rungs(d_head: int) -> list[HopperBackwardKernelConfig]:
    configs = [base(DType.BF16, d_head)]
    for name, _, change in (*steps(d_head), *causal_steps()):
        below = asdict(configs[-1])
        assert all(below[field] != value for field, value in change.items()), name
        assert len(change) == 1 or set(change) == {"tile_order", "group_heads"}, name
        configs.append(replace(configs[-1], **change))
    return configs


@pytest.mark.parametrize(("d_head", "count"), [(64, 10), (128, 11)])
def test_the_ladder_leads_to_the_heuristic(d_head: int, count: int) -> None:
    configs = rungs(d_head)
    assert len(set(configs)) == len(configs) == count
    same_heads = replace(problem(d_head), heads_k=problem(d_head).heads)
    assert configs[-2] == heuristic(same_heads, MEASURED_ARCH)
    in_order = heuristic(replace(same_heads, deterministic=True), MEASURED_ARCH)
    assert not isinstance(in_order, str)
    assert configs[-1].query_gradient is in_order.query_gradient is QueryGradient.ORDERED


@pytest.mark.slow
@pytest.mark.parametrize("d_head", one_in(2, [128, 64]))
def test_every_rung_has_machine_code_of_its_own_and_no_serialised_products(d_head: int) -> None:
    codes = set()
    for kernel in rungs(d_head):
        unit = SM90_BACKWARD.unit(kernel, CAUSAL, MEASURED_ARCH)
        compiled = compile_kernel(unit.source, arch=unit.target, name=unit.name)
        assert compiled.resources.notes == (), kernel
        assert compiled.resources.spill_bytes <= SPILLED, kernel
        codes.add(compiled.cubin)
    assert len(codes) == len(rungs(d_head))
