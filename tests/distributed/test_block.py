# SPDX-License-Identifier: Apache-2.0
"""The kernels compute packed tasks in which queries see no key, and keys are seen by no query."""

from __future__ import annotations

import pytest
import torch

from flash_attention.arch import ARCHES
from flash_attention.call.backward_call import BackwardCall
from flash_attention.distributed.block import Score, _call, attend
from flash_attention.distributed.mask import Mask
from flash_attention.distributed.spans import Span
from flash_attention.distributed.tasks import Packed, Places, Task
from flash_attention.launch.compute import compute, compute_gradients
from flash_attention.launch.plan import Plan
from flash_attention.reference.judge import generate_qkv
from tests.distributed.cases import of_places

ROWS = 48
TASK = Task(
    queries=Span(5, 45),
    keys=Span(0, 44),
    mask=Mask(None, 0),
    packed=Packed(starts_q=(0, 10, 17, 17, 40), starts_k=(0, 10, 10, 21, 44)),
    places=(Places(0, 3, 3), Places(), Places(), Places(2, 31, 31)),
)
"""10 queries of 10 keys, 7 queries without keys, 11 keys without queries, 23 queries of 23 keys."""


SCORES = {"sm_80": Score(), "sm_90": Score(function=of_places("cpu"), documents=True)}


@pytest.mark.slow
@pytest.mark.parametrize("arch", SCORES)
def test_kernels_leave_gaps_empty(arch: str) -> None:
    """Those of Hopper compute with a function, too."""
    q, k, v = generate_qkv(1, ROWS, 2, 64, torch.bfloat16, n_heads_k=1)
    call = _call(TASK, SCORES[arch], q, k, v)._replace(return_lse=True)
    o, lse = compute(call, Plan(call, arch=ARCHES[arch]).config)
    wanted, wanted_lse = (t[0] for t in attend(TASK, SCORES[arch], q, k, v))
    torch.testing.assert_close(o, wanted, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(lse, wanted_lse, rtol=1e-4, atol=1e-4)
    assert bool((lse[:, 10:17] == -torch.inf).all())
    assert bool((o[10:17] == 0).all())

    backward = BackwardCall(torch.ones_like(o), call._replace(out=o), lse)
    kernels = Plan(backward, arch=ARCHES[arch]).config
    found = compute_gradients(backward, kernels)
    for mine, its in zip(found[:3], compute_gradients(backward)[:3], strict=True):
        torch.testing.assert_close(mine, its, rtol=3e-2, atol=3e-2)
    dq, dk, dv = found[:3]
    for gradient, gap in ((dq, slice(10, 17)), (dk, slice(10, 21)), (dv, slice(10, 21))):
        assert gradient is not None
        assert not gradient[gap].any()
