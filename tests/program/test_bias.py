# SPDX-License-Identifier: Apache-2.0
"""Which reads of captured tensors are those of a bias, and which tensors a tensor map describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import Function
from flash_attention.program.bias import Bias, bias_load
from flash_attention.program.trace import trace, trace_score

WIDE = torch.zeros(2, 3, 16, 24, dtype=torch.bfloat16)
Read = Callable[[Tensor, Any, Any, Any, Any], Any]

BIASES: dict[str, tuple[Tensor, Read]] = {
    "every element": (WIDE, lambda t, b, h, q, k: t[b, h, q, k]),
    "one for all batches": (WIDE[0], lambda t, b, h, q, k: t[h, q, k]),
    "one for all": (WIDE[0, 0], lambda t, b, h, q, k: t[q, k]),
    "a number for the head": (WIDE, lambda t, b, h, q, k: t[b, 1, q, k]),
    "groups of heads": (WIDE[0].half(), lambda t, b, h, q, k: t[h // 4, q, k]),
    "not added": (WIDE[0, 0], lambda t, b, h, q, k: torch.exp(t[q, k]) + q),
}


@pytest.mark.parametrize("name", BIASES)
def test_a_read_at_the_query_and_the_key_is_a_bias(name: str) -> None:
    tensor, read = BIASES[name]
    traced = trace_score(lambda s, b, h, q, k: s * 2.0 + read(tensor, b, h, q, k))
    found = bias_load(traced.program)
    assert found is not None
    assert traced.program.nodes[found].op == "load"
    function = Function(lambda s, b, h, q, k: s * 2.0 + read(tensor, b, h, q, k))
    assert function.bias == Bias(0, tuple(tensor.shape), tensor.stride())


OTHERS: dict[str, tuple[Tensor, Read]] = {
    "32 bits": (WIDE[0].float(), lambda t, b, h, q, k: t[h, q, k]),
    "integers": (WIDE[0].short(), lambda t, b, h, q, k: t[h, q, k]),
    "transposed": (WIDE[0], lambda t, b, h, q, k: t[h, k, q]),
    "moved": (WIDE[0], lambda t, b, h, q, k: t[h, q + 1, k]),
    "a distance": (WIDE[0, 0], lambda t, b, h, q, k: t[h, k - q]),
    "one row": (WIDE[0], lambda t, b, h, q, k: t[h, 0, k]),
    "a head by the query": (WIDE[0], lambda t, b, h, q, k: t[q % 2, q, k]),
    "five dimensions": (WIDE[None], lambda t, b, h, q, k: t[0, b, h, q, k]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_reads_are_not(name: str) -> None:
    tensor, read = OTHERS[name]
    function = Function(lambda s, b, h, q, k: s + read(tensor, b, h, q, k))
    assert bias_load(function.program) is None
    assert function.bias is None


def test_what_a_mask_alone_reads_is_none() -> None:
    assert bias_load(trace(None, lambda b, h, q, k: WIDE[b, h, q, k] > 0).program) is None


def test_the_first_of_several_is_the_bias() -> None:
    other = torch.ones(16, 24, dtype=torch.float16)
    found = Function(lambda s, b, h, q, k: s + other[q, k] + WIDE[b, h, q, k]).bias
    assert found == Bias(0, (16, 24), (24, 1))


def strided(*strides: int) -> Tensor:
    return torch.empty(1 << 16, dtype=torch.bfloat16).as_strided((3, 16, 20), strides)


@pytest.mark.parametrize(
    ("tensor", "is_described"),
    [
        (strided(320 * 8, 24, 1), True),
        (strided(0, 24, 1), True),  # expanded
        (strided(24, 72, 1), True),  # heads within rows
        (strided(320 * 8, 20, 1), False),  # rows are no multiples of 16 bytes apart
        (strided(4, 24, 1), False),
        (strided(384, 0, 1), False),  # the same row for every query
        (strided(384, 1, 24), False),  # keys are not contiguous
        (strided(384, 24, 1)[:1].as_strided((1, 16, 20), (5, 24, 1)), True),  # a size of 1
        (torch.empty(1 << 12, dtype=torch.bfloat16)[1:][:1440].view(3, 20, 24), False),  # address
    ],
)
def test_a_tensor_map_needs_aligned_strides(tensor: Tensor, is_described: bool) -> None:
    function = Function(lambda s, b, h, q, k: s + tensor[h, q, k])
    assert (function.bias is not None) is is_described


def test_the_key_of_a_function_follows_its_tensor() -> None:
    tensor = torch.zeros(16, 24, dtype=torch.bfloat16)
    function = Function(lambda s, b, h, q, k: s + tensor[q, k])
    before = function.key
    assert function.key == before
    tensor.data = torch.zeros(32, 24, dtype=torch.bfloat16)
    assert function.key != before
    assert function.bias == Bias(0, (32, 24), (24, 1))
