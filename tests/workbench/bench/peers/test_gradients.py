# SPDX-License-Identifier: Apache-2.0
"""What FA3's operators are told of a case, and which peers there are without a GPU."""

from __future__ import annotations

import pytest

from flash_attention.call.backward_call import Gradients
from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.gradient_case import GradientCase
from flash_attention_workbench.bench.grid import Measured, Point
from flash_attention_workbench.bench.peers.gradients import (
    PEER_NAMES,
    fa3_backward_arguments,
    line_up_gradients,
)

DENSE = Point(64, True, 40, 2, 2)
PACKED = Point(64, False, 40, 2, 2, lengths=(40, 24))


def case_of(point: Point, measured: Measured = Measured.BACKWARD) -> GradientCase:
    return GradientCase.of(point, DType.BF16, measured)


@pytest.mark.parametrize("point", [DENSE, PACKED])
def test_fa3_gets_its_arguments_in_order(point: Point) -> None:
    of = case_of(point)
    q, k, v = of.case.q, of.case.k, of.case.v
    gradients = Gradients(q, k, v)
    backward = fa3_backward_arguments(of, (of.do, q, k, v, of.out, of.lse), gradients, True)
    assert len(backward) == 22
    assert backward[:9] == [of.do, q, k, v, of.out, of.lse, q, k, v]
    assert backward[15:] == [0.125, point.causal, -1, -1, 0.0, True, 0]
    starts, longest = of.case.starts, 40 if point.lengths else None
    assert [backward[9] is starts, backward[10] is starts] == [True, True]
    assert backward[11:15] == [None, None, longest, longest]


def test_without_a_gpu_every_peer_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLASH_ATTENTION_FA3", raising=False)
    lineup = line_up_gradients((*PEER_NAMES, "flex"), case_of(DENSE))
    assert lineup.contenders == ()
    named = "no library of it is named; set FLASH_ATTENTION_FA3 to its path"
    assert lineup.missing == {
        "cudnn": "needs CUDA tensors, q is on cpu",
        "fa2": "needs CUDA tensors, q is on cpu",
        "fa3": named,
        "fa3_deterministic": named,
        "efficient": "needs CUDA tensors, q is on cpu",
        "sdpa_math": "needs CUDA tensors, q is on cpu",
        "flex": "gradients are compared with cudnn, fa2, fa3, fa3_deterministic, efficient,"
        " sdpa_math",
    }


@pytest.mark.gpu
@pytest.mark.parametrize("point", [DENSE, PACKED])
@pytest.mark.parametrize("measured", [Measured.BACKWARD, Measured.TRAINING])
def test_the_gradients_of_torch_are_right_on_a_gpu(point: Point, measured: Measured) -> None:
    of = GradientCase.of(point, DType.BF16, measured, "cuda")
    lineup = line_up_gradients(("fa2",), of)
    (contender,) = lineup.contenders
    assert all(check.ok for check in of.judge().check(contender.run()).values())
