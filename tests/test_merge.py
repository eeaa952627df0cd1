# SPDX-License-Identifier: Apache-2.0
"""merge: parts of the keys give what all of them do, with gradients, on every device."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from flash_attention import UnsupportedError, attention, merge
from flash_attention.reference.judge import generate_qkv
from tests.decode_cases import in_pages, shuffled_table
from tests.devices import DEVICES


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


def parts(device: str, dtype: torch.dtype) -> list[Tensor]:
    """The outputs and the lses of two parts."""
    q, k, v = qkv("cpu", dtype)
    return [t.to(device) for part in over(q, k, v, 0, 13, 50) for t in part]


@pytest.mark.parametrize("device", DEVICES)
def test_float64_is_merged_in_float64(device: str) -> None:
    o1, lse1, o2, lse2 = (t.requires_grad_() for t in parts(device, torch.float64))
    o, lse = merge(o1, lse1, o2, lse2)
    q, k, v = qkv("cpu", torch.float64)
    wanted, wanted_lse = attention(q, k, v, return_lse=True)
    torch.testing.assert_close(o.cpu(), wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse.cpu(), wanted_lse, rtol=1e-12, atol=1e-12)
    found = torch.autograd.grad(o.sum() + lse.sum(), (o1, o2))
    share = torch.exp(lse1.detach() - lse.detach()).mT[..., None].expand_as(o)
    for mine, exact in zip(found, (share, 1 - share), strict=True):
        torch.testing.assert_close(mine, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("which", range(4), ids=["o1", "lse1", "o2", "lse2"])
def test_tangents_are_merged_too(which: int, device: str) -> None:
    given = parts(device, torch.float32)
    step = torch.randn(given[which].shape, generator=torch.Generator().manual_seed(1)).to(device)
    with forward_ad.dual_level():
        dual = [forward_ad.make_dual(t, step) if i == which else t for i, t in enumerate(given)]
        found = [forward_ad.unpack_dual(t).tangent for t in merge(*dual)]
    exact = [t.double() for t in given]
    small = [t + 1e-6 * step if i == which else t for i, t in enumerate(exact)]
    for mine, near, at in zip(found, merge(*small), merge(*exact), strict=True):
        wanted = (near - at) / 1e-6
        mine = torch.zeros_like(wanted) if mine is None else mine.double()
        torch.testing.assert_close(mine, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seq_q", [1, 3])
@pytest.mark.parametrize("paged", [False, True])
def test_one_prefix_serves_many_sequences(paged: bool, seq_q: int, device: str) -> None:
    """The recipe of docs/attention.md."""
    batch, heads, prefix, own = 5, 4, 90, 32
    lengths = torch.tensor([32, 3, 17, 30, 4], dtype=torch.int32)
    _, k, v = generate_qkv(batch, own, 2, 64, torch.bfloat16)
    q, k_prefix, v_prefix = generate_qkv(
        batch, seq_q, heads, 64, torch.bfloat16, seq_len_k=prefix, n_heads_k=2
    )
    k_prefix, v_prefix = k_prefix[0], v_prefix[0]
    rows = q.flatten(0, 1)[None].to(device)
    shared = (t[None].to(device) for t in (k_prefix, v_prefix))
    o1, lse1 = attention(rows, *shared, return_lse=True)
    lse1 = lse1.view(heads, batch, seq_q).transpose(0, 1)
    options: dict[str, Any] = {"seqused_k": lengths.to(device)}
    mine = (k, v)
    if paged:
        options["block_table"] = table = shuffled_table(batch, own // 8).to(device)
        mine = (in_pages(k, table.cpu(), 8), in_pages(v, table.cpu(), 8))
    own_keys = (t.to(device) for t in (q, *mine))
    o2, lse2 = attention(*own_keys, **options, causal=True, return_lse=True)
    o, lse = merge(o1.view(batch, seq_q, heads, -1), lse1, o2, lse2)
    for entry, length in enumerate(lengths.tolist()):
        keys = torch.cat((k_prefix, k[entry, :length]))[None]
        values = torch.cat((v_prefix, v[entry, :length]))[None]
        wanted, its_lse = attention(
            q[entry : entry + 1], keys, values, causal=True, return_lse=True
        )
        close(o[entry].cpu(), wanted[0])
        torch.testing.assert_close(lse[entry].cpu(), its_lse[0], rtol=1e-3, atol=1e-3)


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
        ((None, LSE, OUT, LSE), "o1 is a NoneType; pass a torch.Tensor"),
        ((OUT.to(torch.float8_e4m3fn), LSE, OUT, LSE), "o1 is torch.float8_e4m3fn; allowed are"),
        ((OUT, LSE, OUT, LSE[0]), r"lse2 has shape \(3, 5\); o2 has shape \(2, 5, 3, 8\)"),
        ((OUT, LSE, OUT[0, 0], LSE), r"o2 has shape \(3, 8\); a part is \(batch, seq"),
        ((OUT[None], LSE[None].to_sparse()), "lse1 has layout torch.sparse_coo; pass a dense"),
        ((OUT, LSE, OUT.to("meta"), LSE), "o2 is on meta, o1 is on cpu; move it"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_parts_that_do_not_belong_together_are_refused(given: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        merge(*given)
