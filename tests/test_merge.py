# SPDX-License-Identifier: Apache-2.0
"""merge: parts of the keys give what all of them do, with gradients, on every device."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import UnsupportedError, attention, merge
from flash_attention.reference.judge import generate_qkv

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def qkv(device: str, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = generate_qkv(2, 20, 4, 64, dtype, seq_len_k=50, n_heads_k=2)
    return q.to(device), k.to(device), v.to(device)


def over(q: Tensor, k: Tensor, v: Tensor, *ends: int) -> list[tuple[Tensor, Tensor]]:
    """Attention over the keys between `ends`."""
    spans = pairwise(ends)
    return [attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in spans]


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found.float(), wanted.float(), rtol=1.6e-2, atol=1.6e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_two_parts_give_attention_over_all_keys(device: str) -> None:
    q, k, v = qkv(device)
    first, second = over(q, k, v, 0, 13, 50)
    o, lse = merge(*first, *second)
    wanted, wanted_lse = attention(q, k, v, return_lse=True)
    assert (o.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    close(o, wanted)
    torch.testing.assert_close(lse, wanted_lse, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_stacked_parts_are_merged_at_once(device: str) -> None:
    q, k, v = qkv(device)
    parts = over(q, k, v, 0, 13, 13, 30, 50)  # one without keys
    outs, lses = (torch.stack(each) for each in zip(*parts, strict=True))
    o, lse = merge(outs, lses)
    wanted, wanted_lse = attention(q, k, v, return_lse=True)
    close(o, wanted)
    torch.testing.assert_close(lse, wanted_lse, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_a_wide_sum_of_parts_stays_wide(device: str) -> None:
    q, k, v = qkv(device)
    parts = over(q, k, v, 0, 13, 30, 50)
    o, lse = parts[0][0].float(), parts[0][1]
    for part in parts[1:]:
        o, lse = merge(o, lse, *part)
    assert o.dtype == torch.float32
    close(o, attention(q, k, v))


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_those_of_attention_over_all_keys(device: str) -> None:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = (t.requires_grad_() for t in qkv(device, dtype))
    first, second = over(q, k, v, 0, 13, 50)
    o, lse = merge(*first, *second)
    do, dlse = torch.randn_like(o), torch.randn_like(lse)
    found = torch.autograd.grad((o, lse), (q, k, v), (do, dlse))
    whole = attention(q, k, v, return_lse=True)
    wanted = torch.autograd.grad(whole, (q, k, v), (do, dlse))
    for mine, theirs in zip(found, wanted, strict=True):
        step = 1e-4 if device == "cpu" else 5e-2
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=step, atol=step)


def test_a_compiled_function_merges_too() -> None:
    q, k, v = qkv("cpu")
    first, second = over(q, k, v, 0, 13, 50)
    torch._dynamo.reset()
    compiled: Any = torch.compile(merge, backend="aot_eager", fullgraph=True)
    for mine, theirs in zip(compiled(*first, *second), merge(*first, *second), strict=True):
        torch.testing.assert_close(mine, theirs)


OUT, LSE = torch.zeros(2, 5, 3, 8), torch.zeros(2, 3, 5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((OUT, LSE, OUT), "o2 is given without lse2; pass both, or neither"),
        ((OUT, LSE, None, LSE), "lse2 is given without o2"),
        ((OUT[0], LSE[0]), r"stacked parts are \(parts, batch, seq, heads, d\)"),
        ((OUT[None][:0], LSE[None][:0]), "at least one"),
        ((OUT, LSE.mT, OUT, LSE), r"lse1 has shape \(2, 5, 3\); .* must be \(2, 3, 5\)"),
        ((OUT, LSE, OUT[:1], LSE[:1]), r"o2 has shape \(1, 5, 3, 8\); parts must agree"),
        ((OUT, LSE.double(), OUT, LSE), "lse1 is torch.float64; pass torch.float32"),
        ((OUT.half(), LSE, OUT.bfloat16(), LSE), "o1 is torch.float16, o2 is torch.bfloat16"),
        ((OUT.int(), LSE, OUT, LSE), "o1 is torch.int32; allowed are"),
        ((OUT, LSE, [OUT], LSE), "o2 is a list; pass a torch.Tensor"),
        ((OUT[0, 0], LSE, OUT[0, 0], LSE), r"o1 has shape \(3, 8\); a part is \(batch, seq"),
        ((OUT, LSE, OUT.to("meta"), LSE), "o2 is on meta, o1 is on cpu; move it"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_parts_that_do_not_belong_together_are_refused(given: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        merge(*given)
