# SPDX-License-Identifier: Apache-2.0
"""torch's own scaled_dot_product_attention is the measure, called and routed."""

from __future__ import annotations

import re
import threading
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention import SDPBackend

from flash_attention import attention
from flash_attention.compat import sdpa
from flash_attention.compat.sdpa import (
    BACKEND,
    route_sdpa,
    scaled_dot_product_attention,
    sdpa_kernel,
)
from flash_attention.errors import UnsupportedError

imported_before = F.scaled_dot_product_attention


def tensors(
    seq_q: int = 6, seq_k: int = 6, heads: int = 2, heads_k: int = 2, d_v: int = 16
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return draw(2, heads, seq_q, 16), draw(2, heads_k, seq_k, 16), draw(2, heads_k, seq_k, d_v)


def close(given: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(given, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("seq_q", "seq_k"), [(6, 6), (3, 8), (8, 3), (1, 5), (5, 1)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_masks_start_at_the_first_key(
    seq_q: int, seq_k: int, is_causal: bool, scale: float | None
) -> None:
    q, k, v = tensors(seq_q, seq_k)
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)
    close(scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale), wanted)


@pytest.mark.parametrize("is_causal", [False, True])
def test_shared_heads_and_values_of_another_width(is_causal: bool) -> None:
    q, k, v = tensors(4, 7, heads=6, heads_k=2, d_v=8)
    options: dict[str, Any] = {"is_causal": is_causal, "enable_gqa": True}
    close(
        scaled_dot_product_attention(q, k, v, **options),
        F.scaled_dot_product_attention(q, k, v, **options),
    )


def test_tensors_without_a_batch() -> None:
    q, k, v = (t[0] for t in tensors(4, 7))
    close(scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v))


ALL_DROPPED: dict[str, Any] = {"dropout_p": 1.0}
REFUSAL = r"dropout_p is 1\.0; allowed are numbers from 0\.0"


def test_what_there_is_no_kernel_for_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=REFUSAL):
        scaled_dot_product_attention(*tensors(), **ALL_DROPPED)


def test_heads_are_shared_only_on_demand() -> None:
    with pytest.raises(UnsupportedError, match=r"query has 4 heads, key 2.*enable_gqa=True"):
        scaled_dot_product_attention(*tensors(heads=4))


def test_other_numbers_of_dimensions_are_refused() -> None:
    q, k, v = tensors()
    with pytest.raises(UnsupportedError, match=r"\(batch, heads, seq, d\) or"):
        scaled_dot_product_attention(q[None], k[None], v[None])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The queries of the calls that are computed here."""
    seen: list[Tensor] = []

    def counted(q: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(q)
        return attention(q, *args, **kwargs)

    monkeypatch.setattr(sdpa, "attention", counted)
    return seen


def test_calls_in_the_block_are_computed_here_whatever_their_name(calls: list[Tensor]) -> None:
    q, k, v = tensors(3, 8)
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    with route_sdpa() as routed:
        close(F.scaled_dot_product_attention(q, k, v, is_causal=True), wanted)
        close(torch.nn.functional.scaled_dot_product_attention(q, k, v, None, 0.0, True), wanted)
        close(imported_before(query=q, key=k, value=v, is_causal=True), wanted)
    assert (routed.here, len(calls), not routed.to_torch) == (3, 3, True)
    close(F.scaled_dot_product_attention(q, k, v, is_causal=True), wanted)
    assert len(calls) == 3


def test_other_calls_go_to_torch_and_say_why() -> None:
    q, k, v = tensors()
    with route_sdpa() as routed:
        out = F.scaled_dot_product_attention(q, k, v, **ALL_DROPPED)
    close(out, F.scaled_dot_product_attention(q, k, v, **ALL_DROPPED))
    assert routed.here == 0
    ((reason, count),) = routed.to_torch.items()
    assert count == 1
    assert re.match(REFUSAL, reason)
    with route_sdpa(strict=True), pytest.raises(UnsupportedError, match=REFUSAL):
        F.scaled_dot_product_attention(q, k, v, **ALL_DROPPED)


def test_what_only_attention_finds_out_goes_to_torch_too() -> None:
    q, k, v = tensors()
    broadcast = k[:1], v[:1]
    with route_sdpa() as routed:
        out = F.scaled_dot_product_attention(q, *broadcast)
    close(out, F.scaled_dot_product_attention(q, *broadcast))
    assert (routed.here, routed.to_torch.total()) == (0, 1)


def test_nested_tensors_stay_with_torch() -> None:
    rows = [torch.randn(4, 2, 16), torch.randn(3, 2, 16)]
    heads_first = torch.nested.nested_tensor([t.transpose(0, 1).contiguous() for t in rows])
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged).transpose(1, 2)
    for nested in (heads_first, jagged):
        wanted = F.scaled_dot_product_attention(nested, nested, nested)
        with route_sdpa() as routed:
            given = F.scaled_dot_product_attention(nested, nested, nested)
        assert all(map(torch.equal, given.unbind(), wanted.unbind()))
        assert list(routed.to_torch) == [
            "a tensor is nested; pass dense ones, or call attention with cu_seqlens"
        ]


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_are_those_of_torch(is_causal: bool) -> None:
    q, k, v = leaves = [t.requires_grad_() for t in tensors(5, 7, heads=4, heads_k=2)]
    options: dict[str, Any] = {"is_causal": is_causal, "enable_gqa": True}
    wanted = F.scaled_dot_product_attention(q, k, v, **options)
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1))
    with route_sdpa() as routed:
        given = F.scaled_dot_product_attention(q, k, v, **options)
    assert (routed.here, routed.to_torch.total()) == (1, 0)
    for mine, of_torch in zip(
        torch.autograd.grad(given, leaves, weights),
        torch.autograd.grad(wanted, leaves, weights),
        strict=True,
    ):
        close(mine, of_torch)


def test_blocks_nest_and_the_innermost_decides() -> None:
    q, k, v = tensors()
    with route_sdpa(strict=True) as outer:
        F.scaled_dot_product_attention(q, k, v)
        with route_sdpa() as inner:
            F.scaled_dot_product_attention(q, k, v, **ALL_DROPPED)
            F.scaled_dot_product_attention(q, k, v)
        F.scaled_dot_product_attention(q, k, v)
        with pytest.raises(UnsupportedError):
            F.scaled_dot_product_attention(q, k, v, **ALL_DROPPED)
    assert (inner.here, inner.to_torch.total()) == (1, 1)
    assert (outer.here, outer.to_torch.total()) == (2, 0)


def test_an_exception_ends_the_block(calls: list[Tensor]) -> None:
    def fail() -> None:
        with route_sdpa():
            raise KeyError

    with route_sdpa() as outer:
        with pytest.raises(KeyError):
            fail()
        F.scaled_dot_product_attention(*tensors())
    assert (outer.here, len(calls)) == (1, 1)
    F.scaled_dot_product_attention(*tensors())
    assert len(calls) == 1


def test_other_threads_keep_torch(calls: list[Tensor]) -> None:
    thread = threading.Thread(target=lambda: F.scaled_dot_product_attention(*tensors()))
    with route_sdpa() as routed:
        thread.start()
        thread.join()
    assert (routed.here, len(calls)) == (0, 0)


def test_a_function_compiled_in_the_block_has_the_operator_and_outside_has_not() -> None:
    graphs: list[list[str]] = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).sum(-1)

    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=keep, fullgraph=True)
    for seq_q, seq_k in product((4, 6), (6,)):
        q, k, v = tensors(seq_q, seq_k)
        with route_sdpa():
            close(compiled(q, k, v), layer(q, k, v))
        close(compiled(q, k, v), layer(q, k, v))
    own = ["flash_attention.dense" in " ".join(targets) for targets in graphs]
    assert set(own) == {True, False}
    assert own[:2] == [True, False]


class Layers(torch.nn.Module):
    """The layers of torch that call scaled_dot_product_attention by way of another function."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        options: dict[str, Any] = {"batch_first": True, "dropout": 0.0}
        self.heads = torch.nn.MultiheadAttention(32, 2, **options)
        self.encoder = torch.nn.TransformerEncoderLayer(32, 2, 16, **options)
        self.decoder = torch.nn.TransformerDecoderLayer(32, 2, 16, **options)

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, ...]:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return (
            self.heads(x, memory, memory, need_weights=False)[0],
            self.encoder(x, src_mask=mask, is_causal=True),
            self.decoder(x, memory, tgt_mask=mask, tgt_is_causal=True),
        )


def states() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 5, 32, generator=generator), torch.randn(2, 7, 32, generator=generator)


@pytest.mark.parametrize("training", [True, False])
@torch.no_grad()
def test_layers_of_torch_are_met(training: bool, calls: list[Tensor]) -> None:
    layers = Layers().train(training)
    wanted = layers(*states())
    with route_sdpa(strict=True) as routed:
        given = layers(*states())
    for one, other in zip(given, wanted, strict=True):
        close(one, other)
    assert (routed.here, len(calls)) == (4, 4)


@torch.no_grad()
def test_attention_weights_of_a_layer_are_not_silent() -> None:
    x, memory = states()
    heads = torch.nn.MultiheadAttention(32, 2, batch_first=True)
    wanted = heads(x, memory, memory)
    with route_sdpa() as routed:
        given = heads(x, memory, memory)
    assert all(map(torch.equal, given, wanted))
    assert (routed.here, list(routed.to_torch.values())) == (0, [1])
    with route_sdpa(strict=True), pytest.raises(UnsupportedError, match="need_weights=False"):
        heads(x, memory, memory)
    layer = torch.nn.TransformerEncoderLayer(32, 2, 16, dropout=0.5)
    with route_sdpa(strict=True) as routed:
        layer(x)
    assert routed.here == 1


def test_layers_of_torch_train() -> None:
    layers = Layers()

    def gradients() -> tuple[Tensor, ...]:
        loss = sum(out.square().sum() for out in layers(*states()))
        assert isinstance(loss, Tensor)
        return torch.autograd.grad(loss, list(layers.parameters()))

    wanted = gradients()
    with route_sdpa(strict=True) as routed:
        given = gradients()
    assert routed.here == 4
    for one, other in zip(given, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@torch.no_grad()
def test_a_layer_compiled_in_the_block_has_the_operator() -> None:
    graphs: list[str] = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        graphs.append(" ".join(str(node.target) for node in graph.graph.nodes))
        return graph.forward

    torch._dynamo.reset()
    layers = Layers()
    wanted = layers(*states())
    with route_sdpa(strict=True):
        given = torch.compile(layers, backend=keep)(*states())
        for one, other in zip(given, wanted, strict=True):
            close(one, other)
        assert sum(graph.count("flash_attention.dense") for graph in graphs) == 4
        with pytest.raises(Exception, match="set_fastpath_enabled"):
            torch.compile(layers.eval(), backend=keep)(*states())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_autocast_casts_as_torch_does(is_causal: bool, dtype: torch.dtype) -> None:
    q, k, v = (t.to(dtype) for t in tensors())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        with route_sdpa(strict=True) as routed:
            given = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        called = scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    assert (given.dtype, called.dtype, routed.here) == (wanted.dtype, wanted.dtype, 1)
    torch.testing.assert_close(given, wanted, rtol=1.6e-2, atol=8e-3)
    assert torch.equal(called, given)


@pytest.mark.gpu
def test_autocast_brings_float32_to_the_kernels() -> None:
    q, k, v = (t.cuda() for t in tensors())
    with torch.autocast("cuda", dtype=torch.bfloat16), route_sdpa(strict=True) as routed:
        given = F.scaled_dot_product_attention(q, k, v)
    assert (given.dtype, routed.here) == (torch.bfloat16, 1)
    wanted = F.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(given.float(), wanted, rtol=2e-2, atol=2e-2)


def test_attention_itself_is_not_cast() -> None:
    q, k, v = (t.transpose(1, 2) for t in tensors())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        given = attention(q, k, v)
    assert torch.equal(given, attention(q, k, v))


def test_sdpa_kernel_lists_this_package_among_the_backends() -> None:
    q, k, v = tensors()
    wanted = F.scaled_dot_product_attention(q, k, v, **ALL_DROPPED)
    with sdpa_kernel([BACKEND, SDPBackend.MATH]) as routed:
        F.scaled_dot_product_attention(q, k, v)
        close(F.scaled_dot_product_attention(q, k, v, **ALL_DROPPED), wanted)
        assert not torch.backends.cuda.flash_sdp_enabled()
    assert (routed.here, routed.to_torch.total()) == (1, 1)
    assert torch.backends.cuda.flash_sdp_enabled()
    with sdpa_kernel(BACKEND), pytest.raises(UnsupportedError, match=REFUSAL):
        F.scaled_dot_product_attention(q, k, v, **ALL_DROPPED)
    with sdpa_kernel(SDPBackend.MATH) as routed:
        F.scaled_dot_product_attention(q, k, v)
    assert routed.here == 0


def test_sdpa_kernel_decorates(calls: list[Tensor]) -> None:
    sdpa_kernel(BACKEND)(F.scaled_dot_product_attention)(*tensors())
    assert len(calls) == 1


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"backends has 'flash'.*'fa_jit'"):
        sdpa_kernel("flash").__enter__()


def test_a_call_with_a_tangent_goes_to_torch() -> None:
    q, k, v = tensors()

    def tangent() -> Tensor:
        attend = imported_before
        return torch.func.jvp(lambda q: attend(q, k, v), (q,), (q,))[1]  # type: ignore[no-any-return]

    with torch.nn.attention.sdpa_kernel(SDPBackend.MATH):
        wanted = tangent()
        with route_sdpa() as routed:
            close(tangent(), wanted)
    assert wanted.abs().max() > 0.1
    assert routed.here == 0
    with pytest.raises(UnsupportedError, match="a tensor has a tangent"):
        torch.func.jvp(lambda q: scaled_dot_product_attention(q, k, v), (q,), (q,))
