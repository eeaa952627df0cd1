# SPDX-License-Identifier: Apache-2.0
"""Plans of backward passes: the gradients that they allocate, and what their kernels are told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flash_attention.call.backward_call import BackwardCall, Wanted
from flash_attention.call.call import Call
from flash_attention.call.results import new_gradient
from flash_attention.launch.backward import BackwardPlan
from flash_attention.launch.launcher import Launcher
from tests.backward_cases import backward_of
from tests.feature_cases import Case
from tests.launch.calls import grouped

BACKWARD = "rung:1"
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "heads first": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "gaps": lambda t: torch.cat((t, t), 2)[:, :, : t.shape[2]],
    "every second row": lambda t: torch.cat((t, t), 1)[:, ::2],
    "shared rows": lambda t: t[:, :1].expand_as(t),
}


@pytest.fixture(autouse=True)
def loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launcher, "load", lambda launcher: None)


def assert_fits(plan: BackwardPlan, call: BackwardCall) -> None:
    """The kernels know the addresses and the strides of the gradients, which torch would choose."""
    arguments, gradients = plan.prepare(call)
    given = (call.call.q, call.call.k, call.call.v, call.call.sinks)
    for name, gradient, tensor in zip(gradients._fields, gradients, given, strict=True):
        assert (gradient is not None) == getattr(call.wanted, name)
        assert getattr(arguments, name) == (None if gradient is None else gradient.data_ptr())
        if gradient is not None:
            assert tensor is not None
            like = new_gradient(tensor)
            assert (gradient.shape, gradient.dtype) == (tensor.shape, tensor.dtype)
            assert gradient.stride() == like.stride()
    for view, gradient in zip(plan.views[5:], gradients[:3], strict=True):
        if gradient is not None:
            dims = gradient.ndim
            assert (view.shape[-dims:], view.strides[-dims:]) == (gradient.shape, gradient.stride())


@pytest.mark.parametrize("which", range(3), ids="qkv")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_any_layout_fit_the_kernels(layout: str, which: int) -> None:
    tensors = list(grouped())
    tensors[which] = LAYOUTS[layout](tensors[which])
    q, k, v = tensors
    out = torch.zeros(q.shape, dtype=q.dtype)
    call = BackwardCall(torch.zeros_like(out), Call(q, k, v, out), torch.zeros(1, 6, 100))
    assert_fits(BackwardPlan(call, BACKWARD), call)


@pytest.mark.parametrize("wanted", [Wanted(), Wanted(dq=False, dsinks=True), Wanted(dv=False)])
def test_gradients_of_packed_sequences_and_sinks_fit_the_kernels(wanted: Wanted) -> None:
    made = Case("", (9, 21), (5, 40), 64, 64, sinks=True).make(dtype=torch.float16)
    call = backward_of(made, wanted)
    assert_fits(BackwardPlan(call, BACKWARD), call)
