# SPDX-License-Identifier: Apache-2.0
"""torch's own scaled_dot_product_attention is the measure, called and routed."""

from __future__ import annotations

import threading
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from flash_attention import attention
from flash_attention.compat import sdpa
from flash_attention.compat.sdpa import route_sdpa, scaled_dot_product_attention
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


MASK = torch.ones(6, 6, dtype=torch.bool).tril()
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"attn_mask": MASK}, r"attn_mask is given.*is_causal=True"),
    ({"dropout_p": 0.5}, r"dropout_p is 0\.5.*pass 0\.0"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=["mask", "dropout"])
def test_what_there_is_no_kernel_for_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        scaled_dot_product_attention(*tensors(), **options)


def test_heads_are_shared_only_on_demand() -> None:
    with pytest.raises(UnsupportedError, match=r"query has 4 heads, key 2.*enable_gqa=True"):
        scaled_dot_product_attention(*tensors(heads=4))


def test_other_numbers_of_dimensions_and_gradients_are_refused() -> None:
    q, k, v = tensors()
    with pytest.raises(UnsupportedError, match=r"\(batch, heads, seq, d\) or"):
        scaled_dot_product_attention(q[None], k[None], v[None])
    with pytest.raises(UnsupportedError, match="a tensor requires grad"):
        scaled_dot_product_attention(q.requires_grad_(), k, v)


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


@pytest.mark.parametrize(("options", "message"), REFUSED[:1], ids=["mask"])
def test_other_calls_go_to_torch_and_say_why(options: dict[str, Any], message: str) -> None:
    q, k, v = tensors()
    with route_sdpa() as routed:
        out = F.scaled_dot_product_attention(q, k, v, **options)
    close(out, F.scaled_dot_product_attention(q, k, v, **options))
    assert routed.here == 0
    ((reason, count),) = routed.to_torch.items()
    assert count == 1
    assert reason.startswith("attn_mask is given")
    with route_sdpa(strict=True), pytest.raises(UnsupportedError, match=message):
        F.scaled_dot_product_attention(q, k, v, **options)


def test_what_only_attention_finds_out_goes_to_torch_too() -> None:
    q, k, v = tensors()
    broadcast = k[:1], v[:1]
    with route_sdpa() as routed:
        out = F.scaled_dot_product_attention(q, *broadcast)
    close(out, F.scaled_dot_product_attention(q, *broadcast))
    assert (routed.here, routed.to_torch.total()) == (0, 1)


def test_training_stays_with_torch() -> None:
    q, k, v = tensors()
    q.requires_grad_()
    with route_sdpa() as routed:
        F.scaled_dot_product_attention(q, k, v).sum().backward()
    assert q.grad is not None
    assert (routed.here, routed.to_torch.total()) == (0, 1)
    with route_sdpa() as routed, torch.no_grad():
        F.scaled_dot_product_attention(q, k, v)
    assert routed.here == 1


def test_blocks_nest_and_the_innermost_decides() -> None:
    q, k, v = tensors()
    with route_sdpa(strict=True) as outer:
        F.scaled_dot_product_attention(q, k, v)
        with route_sdpa() as inner:
            F.scaled_dot_product_attention(q, k, v, attn_mask=MASK)
            F.scaled_dot_product_attention(q, k, v)
        F.scaled_dot_product_attention(q, k, v)
        with pytest.raises(UnsupportedError):
            F.scaled_dot_product_attention(q, k, v, attn_mask=MASK)
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
