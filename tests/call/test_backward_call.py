# SPDX-License-Identifier: Apache-2.0
"""BackwardCall: its key, and how one is made of what autograd passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention.call.backward_call import BackwardCall, Wanted, backward_call_of
from flash_attention.call.call import Call
from tests.call.test_call import CHANGES


def whole() -> BackwardCall:
    do, q, k, v, o = (torch.zeros(2, 4, 2, 8, dtype=torch.float16) for _ in range(5))
    return BackwardCall(do, Call(q, k, v, o), torch.zeros(2, 2, 4), torch.zeros(2, 2, 4))


TENSORS = ("do", "lse", "dlse")
OTHERS: dict[str, Any] = {
    "dlse": None,
    "wanted": Wanted(dq=False),
    "deterministic": True,
    "call": whole().call._replace(causal=True),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", TENSORS)
def test_the_key_knows_the_layout_of_every_tensor(name: str, change: str) -> None:
    call = whole()
    changed: dict[str, Any] = {name: CHANGES[change](getattr(call, name))}
    assert call._replace(**changed).key() != call.key()


def test_calls_that_differ_in_more_than_data_have_other_keys() -> None:
    assert {*TENSORS, *OTHERS} == set(BackwardCall._fields)
    call = whole()
    assert whole().key() == call.key()
    for change in OTHERS.items():
        assert call._replace(**dict([change])).key() != call.key()


def test_what_kernels_can_read_is_not_copied() -> None:
    do, call, lse, dlse, wanted, _ = whole()
    wide = torch.zeros(2, 4, 2, 16, dtype=torch.float16)
    heads_first = do.transpose(1, 2).contiguous().transpose(1, 2)
    for given in (do, wide[..., :8], wide[..., 8:], heads_first):
        made = backward_call_of(given, call, lse, dlse, wanted, deterministic=False)
        assert made.do is given
        assert made.dlse is dlse


def test_what_kernels_cannot_read_is_copied() -> None:
    _, call, lse, _, wanted, _ = whole()
    values = torch.arange(2 * 4 * 2 * 8).view(2, 4, 2, 8).half()
    flat = torch.cat((torch.zeros(1).half(), values.flatten()))
    negated = torch.complex(torch.zeros(2, 4, 2, 8), -values.float()).conj().imag
    for given, exact in (
        (flat[1:].view_as(values), values),
        (values.mT.contiguous().mT, values),
        (torch.cat((values, values[..., :1]), -1)[..., :8], values),
        (values[:, :1].expand_as(values), values[:, :1].expand_as(values)),
        (negated, values.float()),
        (torch._neg_view(values), -values),
    ):
        dlse = (
            torch._neg_view(torch.ones(2, 2, 4))
            if given.is_neg()
            else torch.ones(()).expand(2, 2, 4)
        )
        made = backward_call_of(given, call, lse, dlse, wanted, deterministic=False)
        assert torch.equal(made.do, exact)
        assert made.do.is_contiguous()
        assert not made.do.is_neg()
        assert made.do.data_ptr() % 16 == 0
        assert made.dlse is not None
        assert torch.equal(made.dlse, dlse)
        assert made.dlse.is_contiguous()
        assert not made.dlse.is_neg()
