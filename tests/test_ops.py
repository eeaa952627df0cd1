# SPDX-License-Identifier: Apache-2.0
"""The operators: what torch checks of any, compiled and exported calls against eager ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from flash_attention import attention, ops
from flash_attention.call.call import KEYWORDS
from flash_attention.kernel_configs import parse_kernel_config
from flash_attention.reference.judge import cu_seqlens, generate_qkv

Tensors = tuple[Tensor, Tensor, Tensor]
DENSE = torch.ops.flash_attention.dense.default
VARLEN = torch.ops.flash_attention.varlen.default
BOUNDS_Q, BOUNDS_K = cu_seqlens((5, 0, 11)), cu_seqlens((7, 3, 6))


def dense(d_v: int | None = None) -> Tensors:
    return generate_qkv(2, 12, 4, 16, torch.bfloat16, seq_len_k=20, n_heads_k=2, d_v=d_v)


def packed() -> Tensors:
    q, k, v = (t[0] for t in generate_qkv(1, 16, 4, 16, torch.bfloat16, n_heads_k=2))
    return q, k, v


def transposed() -> Tensors:
    """(batch, seq, heads, d) views of (batch, heads, seq, d) memory."""
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in dense())
    return q, k, v


@pytest.mark.parametrize(
    ("tensors", "options"),
    [
        (dense(), {}),
        (dense(), {"causal": True, "softcap": 3.0, "softmax_scale": 0.3}),
        (tuple(t.double() for t in dense()), {}),
        (dense(d_v=8), {"window_left": 3, "window_right": 1}),
        (transposed(), {"sinks": torch.ones(4), "seqused_k": torch.tensor([3, 20]).int()}),
    ],
    ids=["plain", "causal", "float64", "narrow v", "transposed"],
)
def test_the_dense_operator_is_one_that_torch_trusts(
    tensors: Tensors, options: dict[str, Any]
) -> None:
    torch.library.opcheck(DENSE, tensors, options)


@pytest.mark.parametrize(
    "options", [{}, {"causal": True, "sinks": torch.ones(4)}], ids=["plain", "sinks"]
)
def test_the_packed_operator_is_one_that_torch_trusts(options: dict[str, Any]) -> None:
    torch.library.opcheck(VARLEN, (*packed(), BOUNDS_Q, BOUNDS_K, 11, 7), options)


def test_results_of_the_operators_are_contiguous() -> None:
    out, lse = DENSE(*transposed())
    assert out.is_contiguous()
    assert (lse.shape, lse.dtype, lse.is_contiguous()) == ((2, 4, 12), torch.float32, True)
    out, lse = VARLEN(*packed(), BOUNDS_Q, BOUNDS_K, 11, 7)
    assert out.is_contiguous()
    assert (lse.shape, lse.is_contiguous()) == ((4, 16), True)


def with_everything(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    sinks = torch.ones(4, device=q.device)
    return attention(
        *(q, k, v), causal=True, window=(5, None), softcap=2.0, sinks=sinks, return_lse=True
    )


def of_packed(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return attention(
        *(q, k, v),
        causal=True,
        cu_seqlens_q=BOUNDS_Q,
        cu_seqlens_k=BOUNDS_K,
        max_seqlen_q=11,
        max_seqlen_k=7,
        return_lse=True,
    )


def into_another(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    room = torch.empty_like(q)
    result = attention(q, k, v, out=room)
    return result + room


@pytest.mark.parametrize(
    ("function", "tensors"),
    [
        (with_everything, dense()),
        (of_packed, packed()),
        (into_another, transposed()),
    ],
    ids=["everything", "packed", "out"],
)
def test_compiled_calls_give_the_bits_of_eager_ones(
    function: Callable[..., Any], tensors: Tensors
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for given, wanted in zip(compiled(*tensors), function(*tensors), strict=True):
        assert torch.equal(given, wanted)


def test_a_third_length_needs_no_third_trace() -> None:
    torch._dynamo.reset()
    backend = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(with_everything, backend=backend, fullgraph=True)
    q, k, v = dense()
    for length in (7, 9, 5):
        some = q[:, :length].contiguous()
        assert all(map(torch.equal, compiled(some, k, v), with_everything(some, k, v)))
    assert backend.frame_count == 2


def test_a_config_goes_through_a_trace() -> None:
    config = parse_kernel_config("hopper(BF16, 64, 2, 64, 2): tma+specialised")
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return lambda q, k, v: (q,)

    torch._dynamo.reset()
    function = torch.compile(lambda q, k, v: attention(q, k, v, config=config), backend=keep)
    function(*dense())
    (call,) = (node for node in graphs[0].graph.nodes if node.target is DENSE)
    assert call.kwargs["config"] == config.short_form()


def test_the_operators_take_every_keyword_of_a_call() -> None:
    window = {"window_left", "window_right"}
    asked = set(KEYWORDS) - {"window", "return_lse"} | window | {"q", "k", "v", "config"}
    assert {argument.name for argument in VARLEN._schema.arguments} == asked
    packed = {name for name in KEYWORDS if "seqlen" in name}
    assert {argument.name for argument in DENSE._schema.arguments} == asked - packed


def test_an_unknown_keyword_is_named_in_a_trace_too() -> None:
    message = r"attention\(\) got an unexpected keyword argument 'casual'; did you mean 'causal'\?"
    with pytest.raises(TypeError, match=message):
        ops.traced(*dense(), None, None, False, {"casual": True})


def test_validation_needs_values() -> None:
    torch._dynamo.reset()

    def validated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, validate=True)

    compiled = torch.compile(validated, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="validate outside of it"):
        compiled(*dense())


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(32, 3 * 32, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).view(*x.shape[:2], 3, 2, 16).unbind(2)
        return attention(q, k, v, causal=True).flatten(2)


@pytest.mark.parametrize("strict", [False, True])
@torch.no_grad()
def test_an_exported_layer_is_the_layer(strict: bool) -> None:
    layer, x = Layer(), torch.randn(2, 12, 32, dtype=torch.bfloat16)
    lengths = {"x": {1: torch.export.Dim("length", min=2, max=64)}}
    exported = torch.export.export(layer, (x,), strict=strict, dynamic_shapes=lengths)
    assert sum(node.target is DENSE for node in exported.graph.nodes) == 1
    for length in (12, 5):
        part = x[:, :length]  # the projection may be another product, rounded another way
        torch.testing.assert_close(exported.module()(part), layer(part))


def test_a_gradient_is_refused_and_not_forgotten() -> None:
    q, k, v = dense()
    q.requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(with_everything, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="a tensor requires grad"):
        compiled(q, k, v)
    out, _ = DENSE(q, k, v)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        out.sum().backward()
    with torch.no_grad():
        assert torch.equal(compiled(q, k, v)[0], with_everything(q, k, v)[0])
