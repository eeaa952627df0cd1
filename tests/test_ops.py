# SPDX-License-Identifier: Apache-2.0
"""The operators: what torch checks of any, compiled and exported calls against eager ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from flash_attention import attention
from flash_attention.call.call import DESCALES, KEYWORDS
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import parse_kernel_config
from flash_attention.reference.judge import cu_seqlens, generate_qkv

Tensors = tuple[Tensor, Tensor, Tensor]
DENSE = torch.ops.flash_attention.dense.default
VARLEN = torch.ops.flash_attention.varlen.default
DENSE_BACKWARD = torch.ops.flash_attention.dense_backward.default
VARLEN_BACKWARD = torch.ops.flash_attention.varlen_backward.default
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
    out, lse, _ = DENSE(*transposed())
    assert out.is_contiguous()
    assert (lse.shape, lse.dtype, lse.is_contiguous()) == ((2, 4, 12), torch.float32, True)
    out, lse, _ = VARLEN(*packed(), BOUNDS_Q, BOUNDS_K, 11, 7)
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
    own = {"q", "k", "v", "config", "backward_config", "deterministic"}
    function = {"program", "captured", "integers", "floats"}
    asked = set(KEYWORDS) - {"window", "function", "return_lse"} | window | own | function
    assert {argument.name for argument in VARLEN._schema.arguments} == asked
    packed = {name for name in KEYWORDS if "seqlen" in name}
    assert {argument.name for argument in DENSE._schema.arguments} == asked - packed
    of_gradients = {"do", "dlse", "out", "lse", "wanted"}
    forward_only = {"config", "block_table", "split_keys", "batch_invariant", *DESCALES}
    forward_only.add("return_max")
    backward = asked - forward_only | of_gradients
    assert {argument.name for argument in VARLEN_BACKWARD._schema.arguments} == backward
    assert {argument.name for argument in DENSE_BACKWARD._schema.arguments} == backward - packed


def test_an_unknown_keyword_is_named_in_a_trace_too() -> None:
    message = r"attention\(\) got an unexpected keyword argument 'casual'; did you mean 'causal'\?"
    with FlopCounterMode(display=False), pytest.raises(TypeError, match=message):
        attention(*dense(), casual=True)  # type: ignore[call-overload]


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


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, causal=True)


def close(given: Tensor, wanted: Tensor) -> None:
    """Within a step of bf16."""
    torch.testing.assert_close(given, wanted, rtol=8e-3, atol=8e-3)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fake_tensors_get_fake_results(device: str) -> None:
    with FakeTensorMode():
        q, k, v = (torch.empty(t.shape, dtype=t.dtype, device=device) for t in dense(d_v=8))
        out, lse = with_everything(q, k, v)
    for result in (out, attention(q, k, v)):  # inside of the mode and outside
        assert (result.shape, result.dtype, result.device.type) == (
            (2, 12, 4, 8),
            torch.bfloat16,
            device,
        )
    assert (lse.shape, lse.dtype) == ((2, 4, 12), torch.float32)


def test_tensors_on_the_meta_device_get_such_results() -> None:
    q, k, v = (t.to("meta") for t in dense(d_v=8))
    out = attention(q, k, v)
    assert (out.shape, out.dtype, out.is_meta) == ((2, 12, 4, 8), torch.bfloat16, True)
    with pytest.raises(UnsupportedError, match="validate outside of it"):
        attention(q, k, v, validate=True)


def test_a_fake_tensor_with_a_real_one_is_no_call_for_a_kernel() -> None:
    q, k, v = dense()
    with FakeTensorMode():
        fake = torch.empty(q.shape, dtype=q.dtype)
    with pytest.raises(Exception, match="FakeTensorMode"):
        attention(fake, k, v)


def test_errors_of_real_tensors_stay_what_they_are() -> None:
    q, k, v = dense()
    with pytest.raises(UnsupportedError, match="must agree in d_head"):
        attention(q, k[..., :8], v)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_is_a_call_for_each() -> None:
    q, k, v = dense()
    sinks = torch.randn(3, 4)
    many = torch.stack((q, 2 * q, 3 * q))
    given = torch.vmap(lambda q, sinks: attention(q, k, v, sinks=sinks), in_dims=0)(many, sinks)
    for each, one, own in zip(given, many, sinks, strict=True):
        close(each, attention(one, k, v, sinks=own))


@pytest.mark.filterwarnings("ignore")
def test_a_traced_function_computes_with_what_it_is_given() -> None:
    q, k, v = dense()
    traced = torch.jit.trace(causal, (q, k, v))
    close(traced(q + 1, k - 1, 2 * v), causal(q + 1, k - 1, 2 * v))
    graph = make_fx(causal)(q, k, v)
    assert sum(node.target is DENSE for node in graph.graph.nodes) == 1


def flop(function: Callable[..., Any], *tensors: Tensor, **options: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        function(*tensors, **options)
    return int(counter.get_total_flops())


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (3, 0)}], ids=str)
def test_flop_are_counted_as_those_of_torch(options: dict[str, Any]) -> None:
    q, k, v = dense(d_v=8)
    rows = (t.repeat_interleave(q.shape[2] // t.shape[2], 2).transpose(1, 2) for t in (q, k, v))
    of_torch = flop(
        torch.ops.aten._scaled_dot_product_flash_attention, *(t.to("meta") for t in rows)
    )
    assert flop(attention, q, k, v, **options) == of_torch == 2 * 2 * 4 * 12 * 20 * (16 + 8)


def test_flop_of_sequences_are_those_of_their_lengths() -> None:
    q, k, v = packed()
    lengths: dict[str, Any] = {"max_seqlen_q": 11, "max_seqlen_k": 7}
    starts = {"cu_seqlens_q": BOUNDS_Q, "cu_seqlens_k": BOUNDS_K}
    per_pair = 2 * 4 * (16 + 16)
    assert flop(attention, q, k, v, **starts, **lengths) == per_pair * (5 * 7 + 0 * 3 + 11 * 6)
    used = torch.tensor([7, 1, 2]).int()
    assert flop(attention, q, k, v, **starts, **lengths, seqused_k=used) == per_pair * (35 + 22)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in (q, k, v)]
        starts = {name: mode.from_tensor(t) for name, t in starts.items()}
        assert flop(attention, *fake, **starts, **lengths) == per_pair * 3 * 11 * 7


def test_flop_of_pages_are_those_of_the_keys_in_use() -> None:
    q, k, v = dense()
    table = torch.tensor([[0, 1], [1, 0]]).int()
    options: dict[str, Any] = {"block_table": table, "seqused_k": torch.tensor([33, 1]).int()}
    assert flop(attention, q, k, v, **options) == 2 * 4 * (16 + 16) * 12 * (33 + 1)
    fake = {name: tensor.to("meta") for name, tensor in options.items()}
    meta = (t.to("meta") for t in (q, k, v))
    assert flop(attention, *meta, **fake) == 2 * 4 * (16 + 16) * 12 * 2 * 40


def test_validation_under_a_mode_reads_the_values() -> None:
    q, k, v = dense()
    used = torch.tensor([21, 1]).int()
    with FlopCounterMode(display=False), pytest.raises(UnsupportedError, match=r"seqused_k\[0\]"):
        attention(q, k, v, seqused_k=used, validate=True)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"window": 5}, "window is 5; pass a tuple"),
        ({"softcap": "x"}, "softcap is a str; pass a positive number"),
        ({"causal": "x"}, "causal is 'x'; pass True or False"),
        ({"split_keys": 0}, "split_keys is 0; pass how many keys"),
        ({"sinks": [1.0]}, "sinks is a list; pass a torch.Tensor"),
        ({"seqused_k": [1, 2]}, "seqused_k is a list; pass a torch.Tensor"),
        ({"validate": "x"}, "validate is 'x'; pass True or False"),
        ({"out": []}, "the output is a list; pass a torch.Tensor"),
        ({"out": torch.empty(2, 2, 12, 4, 16)}, r"the output has shape \(2, 2, 12, 4, 16\)"),
        ({"out": torch.empty(2, 12, 4, 16)}, "the output has dtype torch.float32, q has"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_mode_that_looks_on_sees_the_same_refusals(
    keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        attention(*dense(), **keywords)
    with FlopCounterMode(display=False), pytest.raises(UnsupportedError, match=message):
        attention(*dense(), **keywords)


def test_a_mode_that_looks_on_sees_windows_of_any_size() -> None:
    q, k, v = dense()
    window: Any = (2**70, torch.tensor(0))
    with FlopCounterMode(display=False):
        wide = attention(q, k, v, window=window)
    assert torch.equal(wide, attention(q, k, v, window=(-1, 0)))


def test_a_compiled_function_refuses_an_output_of_another_dtype() -> None:
    q, k, v = dense()
    compiled = torch.compile(lambda out: attention(q, k, v, out=out), backend="eager")
    with pytest.raises(Exception, match=r"the output has dtype torch\.float32, q has"):
        compiled(torch.empty(2, 12, 4, 16))
