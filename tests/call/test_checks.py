# SPDX-License-Identifier: Apache-2.0
"""What precedes every choice of a kernel: a call is checked, and becomes a problem and views."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.checks import check_call, explain_bad_key, views_of
from flash_attention.call.problem import Problem
from flash_attention.errors import UnsupportedError

CPU = torch.device("cpu")


def meta(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def test_tensors_without_memory_pass_only_as_if_on_a_device() -> None:
    q = meta(1, 8, 4, 64)
    with pytest.raises(UnsupportedError, match="q is on meta; a CUDA tensor is needed"):
        check_call(Call(q, q, q))
    problem, views = check_call(Call(q, q, q), device=CPU)
    assert (problem.seq_q, len(views)) == (8, 4)
    there = torch.zeros(q.shape, dtype=q.dtype)
    with pytest.raises(UnsupportedError, match="q is on meta; a CUDA tensor is needed"):
        check_call(Call(q, there, there), device=CPU)


def test_a_checked_call_is_a_problem_and_four_views_with_a_batch() -> None:
    q, k, v = meta(50, 4, 64), meta(3, 70, 2, 64), meta(3, 70, 2, 40)
    starts = torch.zeros(4, dtype=torch.int32, device="meta")
    call = Call(q, k, v, cu_seqlens_q=starts, max_seqlen_q=20, causal=True)
    problem, views = check_call(call, device=CPU)
    assert problem == Problem.of(call)
    assert [view.name for view in views] == ["q", "k", "v", "the output"]
    shapes = [(1, 50, 4, 64), (3, 70, 2, 64), (3, 70, 2, 40), (1, 50, 4, 40)]
    assert [view.shape for view in views] == shapes
    assert views[3].strides == (0, 160, 40, 1)


def test_an_output_that_is_not_given_is_strided_like_q() -> None:
    q = torch.zeros(2, 4, 8, 64, dtype=torch.float16).transpose(1, 2)
    _, views = check_call(Call(q, q, q))
    assert (views[3].strides, views[3].device) == (q.stride(), q.device)
    given = torch.zeros(2, 8, 4, 64, dtype=torch.float16)
    _, views = check_call(Call(q, q, q, given))
    assert (views[3].strides, views[3].pointer) == (given.stride(), given.data_ptr())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"softcap": -1.0}, r"softcap is -1\.0"),
        ({"v": torch.zeros(1, 8, 4, 64)}, "v is torch.float32; allowed are"),
        ({"k": torch.zeros(1, 8, 3, 64).half()}, "k has shape"),
        ({"sinks": torch.zeros(3)}, r"sinks has shape \(3\); it must be \(heads = 4,\)"),
        ({"out": torch.zeros(1, 7, 4, 64).half()}, r"the output has shape \(1, 7, 4, 64\)"),
        ({"out": torch.zeros(1, 8, 1, 64).half().expand(1, 8, 4, 64)}, "share memory"),
        ({"q": None}, "q is a NoneType"),
    ],
    ids=["option", "kind", "shape", "extra", "output", "output's memory", "no tensor"],
)
def test_every_kind_of_rule_is_applied(change: dict[str, Any], message: str) -> None:
    q = torch.zeros(1, 8, 4, 64, dtype=torch.float16)
    check_call(Call(q, q, q))
    with pytest.raises(UnsupportedError, match=message):
        check_call(Call(q, q, q)._replace(**change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": [1, 2]}, "k is a list; pass a torch.Tensor"),
        ({"window": [3, 4]}, r"window is \[3, 4\]; pass a tuple"),
        ({"sinks": [0.0]}, "sinks is a list"),
        ({"cu_seqlens_q": torch.zeros(2).int(), "max_seqlen_q": []}, r"max_seqlen_q is \[\]"),
    ],
    ids=["tensor", "option", "extra", "length"],
)
def test_arguments_that_no_key_can_be_made_of_are_explained(
    change: dict[str, Any], message: str
) -> None:
    q = torch.zeros(1, 8, 4, 64, dtype=torch.float16)
    call = Call(q, q, q)._replace(**change)
    with pytest.raises((AttributeError, TypeError)):
        hash(call.key())
    with pytest.raises(UnsupportedError, match=message):
        explain_bad_key(call)


def test_views_are_of_what_is_there() -> None:
    q, k, v, out = (torch.zeros(1, 8, 4, 64) for _ in range(4))
    assert [view.name for view in views_of(Call(q, k, v))] == ["q", "k", "v"]
    views = views_of(Call(q, k, v, out))
    assert [view.pointer for view in views] == [t.data_ptr() for t in (q, k, v, out)]
