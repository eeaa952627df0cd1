# SPDX-License-Identifier: Apache-2.0
"""Calls whose mask function says what a built-in mask says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from flash_attention import Function, attention, masks, scores
from flash_attention.call.built_in import with_built_in_mask
from flash_attention.call.call import Call
from flash_attention.errors import UnsupportedError

SLOPES = torch.tensor([0.5, 0.25])
STARTS = torch.tensor([0, 5, 9], dtype=torch.int32)
LENGTHS = torch.tensor([9], dtype=torch.int32)


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, 2, 16, generator=torch.Generator().manual_seed(sum(shape))).half()


def of(q: Tensor, k: Tensor, **keywords: Any) -> Call:
    return with_built_in_mask(Call(q, k, k, **keywords))


def test_a_mask_becomes_causal_or_a_window() -> None:
    q = rows(1, 9)
    assert of(q, q, function=Function(mask=masks.causal())) == Call(q, q, q, causal=True)
    assert of(q, q, function=Function(mask=masks.window(3, 0))) == Call(q, q, q, window=(3, 0))
    both = of(q, q, function=Function(scores.alibi(SLOPES), masks.causal()))
    assert both.causal
    assert both.function == Function(scores.alibi(SLOPES))


@pytest.mark.parametrize(
    "keywords",
    [
        {"mask": masks.prefix_lm(3)},
        {"mask": masks.window(3, 0), "window": (5, 5)},
        {"mask": masks.causal(), "rows_k": 11},  # queries are counted from the first key
        {"mask": masks.causal(), "cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS.clone()},
        {
            "mask": masks.causal(),
            "score": scores.alibi(SLOPES),
            "cu_seqlens_q": STARTS,
            "cu_seqlens_k": STARTS,
        },
    ],
)
def test_other_calls_keep_their_function(keywords: dict[str, Any]) -> None:
    given = dict(keywords)
    q, k = rows(1, 9), rows(1, given.pop("rows_k", 9))
    if "cu_seqlens_q" in given:
        q, k = q[0], k[0]
    function = Function(given.pop("score", None), given.pop("mask"))
    assert of(q, k, function=function, **given).function is function


def test_caches_and_packed_sequences_of_one_length_are_aligned() -> None:
    causal = Function(mask=masks.causal())
    q, k = rows(1, 3), rows(1, 9)
    assert of(q, k, function=causal, seqused_k=LENGTHS).causal
    packed = {"cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS}
    assert of(rows(9), rows(9), function=causal, **packed).function is None


@pytest.mark.parametrize(
    ("mask", "built_in"),
    [(masks.causal(), {"causal": True}), (masks.window(3, 0), {"window": (3, 0)})],
)
def test_results_and_gradients_are_those_of_the_built_in_mask(
    mask: masks.Mask, built_in: dict[str, Any]
) -> None:
    found = []
    for keywords in ({"mask": mask}, built_in):
        q, k, v = (rows(2, 9 + n)[:, :9].requires_grad_() for n in range(3))
        out = attention(q, k, v, score=scores.softcap(2.0), **keywords)
        out.square().sum().backward()
        found.append((out, q.grad, k.grad, v.grad))
    for one, other in zip(*found, strict=True):
        assert one is not None
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("q", "more", "words"),
    [
        ("q", {}, "q is a str; pass a torch.Tensor"),
        (torch.nested.nested_tensor([rows(3), rows(4)]), {}, "q is a nested tensor"),
        (rows(1, 9), {"causal": "no"}, "causal is 'no'; pass True or False"),
        (rows(1, 9), {"causal": torch.ones(9, 9)}, "causal is a Tensor; pass True or False"),
    ],
)
def test_what_is_refused_without_a_mask_is_refused_with_one(
    q: Any, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnsupportedError, match=words):
        attention(q, rows(1, 9) if isinstance(q, str) else q, q, mask=masks.causal(), **more)


def test_equal_lengths_of_a_trace_may_differ_in_its_graph() -> None:
    def masked(q: Tensor, k: Tensor) -> Tensor:
        return attention(q, k, k, mask=masks.causal())

    with pytest.raises(UnsupportedError, match=r"torch\.export, torch\.vmap, dispatch modes"):
        make_fx(masked, tracing_mode="symbolic")(rows(1, 9), rows(1, 9))
