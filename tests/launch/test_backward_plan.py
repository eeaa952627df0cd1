# SPDX-License-Identifier: Apache-2.0
"""Plans of backward passes: the gradients that they allocate, and what their kernels are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from flash_attention.call.backward_call import BackwardCall, Wanted
from flash_attention.call.call import Call
from flash_attention.call.results import new_gradient
from flash_attention.errors import UnsupportedError
from flash_attention.launch.launcher import Launcher
from flash_attention.launch.plan import Plan
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


def assert_fits(plan: Plan, call: BackwardCall) -> None:
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
    assert_fits(Plan(call, BACKWARD), call)


@pytest.mark.parametrize("wanted", [Wanted(), Wanted(dq=False, dsinks=True), Wanted(dv=False)])
def test_gradients_of_packed_sequences_and_sinks_fit_the_kernels(wanted: Wanted) -> None:
    made = Case("", (9, 21), (5, 40), 64, 64, sinks=True).make(dtype=torch.float16)
    call = backward_of(made, wanted)
    assert_fits(Plan(call, BACKWARD), call)


def dense_pass() -> BackwardCall:
    q, k, v = grouped()
    out, lse = torch.zeros_like(q), torch.zeros(1, 6, 100)
    return BackwardCall(torch.zeros_like(q), Call(q, k, v, out), lse, torch.zeros_like(lse))


def misaligned(tensor: Tensor) -> Tensor:
    return tensor.new_zeros(tensor.numel() + 4)[4:].view(tensor.shape)


@pytest.mark.parametrize("with_dlse", [False, True])
def test_the_kernels_are_told_where_everything_lies(with_dlse: bool) -> None:
    made = Case("", (9, 21), (5, 40), 64, 64, sinks=True, used=(3, 40)).make(dtype=torch.float16)
    call = backward_of(made, with_dlse=with_dlse)
    given: dict[str, Tensor | None] = call.call._asdict()
    given |= {"o": given.pop("out"), "d_o": call.do, "lse": call.lse, "dlse": call.dlse}
    names = ("q", "k", "v", "o", "d_o", "lse", "dlse", "sinks", "cu_seqlens_q", "cu_seqlens_k")
    plan = Plan(call, BACKWARD)
    for arguments in (plan.bind(call), plan.prepare(call)[0]):
        told = {name: getattr(arguments, name) for name in (*names, "seqused_k")}
        lies = {name: None if (t := given[name]) is None else t.data_ptr() for name in told}
        assert told == lies


@pytest.mark.parametrize("name", ["do", "q", "k", "v", "o"])
def test_every_pass_checks_alignment(name: str) -> None:
    good = dense_pass()
    plan = Plan(good, BACKWARD)
    plan.prepare(good)
    field = "out" if name == "o" else name
    changed: dict[str, Any] = {
        field: misaligned(good.do if name == "do" else getattr(good.call, field))
    }
    bad = (
        good._replace(**changed)
        if name == "do"
        else good._replace(call=good.call._replace(**changed))
    )
    for prepare in (plan.prepare, plan.bind):
        with pytest.raises(UnsupportedError, match=f"^{name} starts at .* 8 bytes past"):
            prepare(bad)


@pytest.mark.parametrize("name", ["do", "lse", "dlse", "q", "out"])
def test_every_pass_checks_tangents(name: str) -> None:
    good = dense_pass()
    plan = Plan(good, BACKWARD)
    with forward_ad.dual_level():
        plan.prepare(good)
        given: Tensor = getattr(good.call if name in Call._fields else good, name)
        dual: dict[str, Any] = {name: forward_ad.make_dual(given, torch.ones_like(given))}
        if name in Call._fields:
            dual = {"call": good.call._replace(**dual)}
        with pytest.raises(UnsupportedError, match="a tensor has a tangent"):
            plan.prepare(good._replace(**dual))


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("keys", [0, 9], ids=["no keys", "keys of no sequence"])
@pytest.mark.parametrize("starts", [(0, 10, 30), (3, 10, 30), (0, 10, 25), (3, 10, 25)], ids=str)
def test_rows_of_no_sequence_have_no_part_in_the_gradient_of_sinks(
    starts: tuple[int, ...], keys: int
) -> None:
    q, k = (torch.zeros(rows, 6, 64, dtype=torch.float16) for rows in (30, keys))
    lengths = torch.tensor(starts, dtype=torch.int32)
    packed: dict[str, Any] = {
        "cu_seqlens_q": lengths,
        "cu_seqlens_k": torch.zeros(3, dtype=torch.int32),
        "max_seqlen_q": 20,
        "max_seqlen_k": 0,
    }
    sinks, dlse = torch.randn(6), torch.randn(6, 30)
    rows = slice(starts[0], starts[-1])
    wanted = dlse[:, rows].sum(1)
    dlse[:, : starts[0]] = dlse[:, starts[-1] :] = torch.nan
    forward = Call(q, k, k, q.clone(), sinks, **packed)
    lse = sinks[:, None].repeat(1, 30)
    call = BackwardCall(q + 1, forward, lse, dlse, Wanted(dsinks=True))
    dq, dk, dv, dsinks = Plan(call, BACKWARD).run(call)
    for gradient, tensor in ((dq, q), (dk, k), (dv, k)):
        assert gradient is not None
        assert torch.equal(gradient, torch.zeros_like(tensor))
    assert dsinks is not None
    torch.testing.assert_close(dsinks, wanted)
    without = Plan(call._replace(dlse=None), BACKWARD).run(call._replace(dlse=None))
    assert without.dsinks is not None
    assert not without.dsinks.any()
