# SPDX-License-Identifier: Apache-2.0
"""Calls in forward mode are explained with the kernel that they run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from flash_attention import KernelConfigError, UnsupportedError, attention, explain
from flash_attention.call.tangent_call import TangentProblem
from tests.families.sm90.tangent.cases import USUAL

META = torch.empty(2, 4096, 16, 64, dtype=torch.bfloat16, device="meta")


def test_the_kernel_and_its_work_are_told() -> None:
    found = explain(META, META, META, tangents=True, arch="sm_90")
    plain = explain(META, META, META, arch="sm_90")
    assert found.config == USUAL
    assert isinstance(found.problem, TangentProblem)
    assert found.rule == "heuristic: d_head 64, full"
    assert (found.work.flop, found.work.num_bytes) == (
        3 * plain.work.flop,
        2 * plain.work.num_bytes,
    )
    (launch,) = found.launches
    assert (launch.threads, launch.smem_bytes) == (384, USUAL.smem_bytes())
    said = str(found)
    assert f"config    {USUAL.short_form()}" in said
    assert "bfloat16, with tangents" in said
    assert "MB of q, k, v and o and their tangents" in said


def test_a_call_inside_of_a_transform_is_explained() -> None:
    q = torch.randn(1, 9, 1, 64).bfloat16()
    told = []

    def attend(q: torch.Tensor) -> torch.Tensor:
        told.append(explain(q, q, q, arch="sm_90"))
        return attention(q, q, q)

    jvp: Any = torch.func.jvp
    jvp(attend, (q,), (q,))
    with forward_ad.dual_level():
        told.append(explain(forward_ad.make_dual(q, q), q, q, arch="sm_90"))
        told.append(explain(q, q, q, arch="sm_90"))
    assert [one.config == USUAL for one in told] == [True, True, False]
    assert told[0].torch_computes


def test_what_attention_refuses_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a tangent and sinks is given"):
        explain(META, META, META, tangents=True, sinks=torch.empty(16, device="meta"))
    with pytest.raises(UnsupportedError, match="on sm_80: a kernel for tangents needs sm_90"):
        explain(META, META, META, tangents=True, arch="sm_80")
    with pytest.raises(KernelConfigError, match="a config of the forward pass; pass a HopperTan"):
        explain(META, META, META, tangents=True, config="hopper(BF16, 64, 2, 128, 1): tma")
