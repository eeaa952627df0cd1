# SPDX-License-Identifier: Apache-2.0
"""The backward operators: what torch checks of any, compiled gradients against eager ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import sdpa_backward_flop_count

from flash_attention import attention
from flash_attention.errors import UnsupportedError
from tests.test_ops import (
    BOUNDS_K,
    BOUNDS_Q,
    DENSE,
    DENSE_BACKWARD,
    VARLEN,
    VARLEN_BACKWARD,
    Tensors,
    dense,
    flop,
    into_another,
    of_packed,
    packed,
    transposed,
    with_everything,
)


@pytest.mark.parametrize("wanted", [[True, True, True, True], [False, True, False, False]], ids=str)
@pytest.mark.parametrize("tensors", [dense(), dense(d_v=8), transposed()], ids=["", "d_v", "t"])
def test_the_dense_backward_operator_is_one_that_torch_trusts(
    tensors: Tensors, wanted: list[bool]
) -> None:
    options = {"sinks": torch.ones(4), "causal": True, "deterministic": True}
    out, lse, _ = DENSE(*tensors, **options)
    given = (torch.randn_like(out), torch.randn_like(lse), out, lse, wanted, *tensors)
    torch.library.opcheck(DENSE_BACKWARD, given, options)


def test_the_packed_backward_operator_is_one_that_torch_trusts() -> None:
    lengths = (BOUNDS_Q, BOUNDS_K, 11, 7)
    out, lse, _ = VARLEN(*packed(), *lengths)
    given = (torch.randn_like(out), None, out, lse, [True, True, True, False], *packed(), *lengths)
    torch.library.opcheck(VARLEN_BACKWARD, given)


def test_operators_whose_tensors_require_grad_are_trusted() -> None:
    leaves = tuple(t.detach().clone().requires_grad_() for t in dense())
    sinks = torch.ones(4, requires_grad=True)
    torch.library.opcheck(DENSE, leaves, {"sinks": sinks, "softcap": 2.0})
    leaves = tuple(t.detach().clone().requires_grad_() for t in packed())
    torch.library.opcheck(VARLEN, (*leaves, BOUNDS_Q, BOUNDS_K, 11, 7), {"causal": True})


def gradients(
    function: Callable[..., Any], tensors: Tensors, sinks: Tensor | None = None
) -> tuple[Tensor, ...]:
    """The gradients of the results of a function, each with random weights."""
    generator = torch.Generator().manual_seed(1)
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    weights = [torch.randn(t.shape, generator=generator).to(t.dtype) for t in results]
    return torch.autograd.grad(results, leaves, weights)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(
    ("function", "tensors"),
    [(with_everything, dense()), (of_packed, packed()), (with_everything, transposed())],
    ids=["everything", "packed", "transposed"],
)
def test_compiled_gradients_have_the_bits_of_eager_ones(
    function: Callable[..., Any], tensors: Tensors, backend: str
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for given, wanted in zip(
        gradients(compiled, tensors), gradients(function, tensors), strict=True
    ):
        assert torch.equal(given, wanted)


def test_what_cannot_be_differentiated_is_refused_in_a_trace_too() -> None:
    q, k, v = dense()
    q.requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(into_another, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="out is given and a tensor requires grad"):
        compiled(q, k, v)
    pages = {"block_table": torch.zeros(2, 1).int(), "seqused_k": torch.ones(2).int()}
    with pytest.raises(UnsupportedError, match="no gradients of a paged KV cache"):
        DENSE(q, k, v, **pages)


def test_flop_of_gradients_are_counted_as_those_of_torch() -> None:
    q, k, v = (t.requires_grad_() for t in dense(d_v=8))

    def backward(out: Tensor) -> None:
        out.sum().backward()

    alone = flop(backward, attention(q, k, v))
    shapes = [torch.Size(t.transpose(1, 2).shape) for t in (v.new_empty(2, 12, 4, 8), q, k, v)]
    shapes[2:] = [torch.Size((2, 4, *shape[2:])) for shape in shapes[2:]]  # a head for each of q
    assert alone == sdpa_backward_flop_count(*shapes) == 2 * 2 * 4 * 12 * 20 * (3 * 16 + 2 * 8)
    both = flop(lambda: backward(attention(q, k, v)))
    assert both == alone + 2 * 2 * 4 * 12 * 20 * (16 + 8)
