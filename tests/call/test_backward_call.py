# SPDX-License-Identifier: Apache-2.0
"""BackwardCall: its key."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention.call.backward_call import BackwardCall, Wanted
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
