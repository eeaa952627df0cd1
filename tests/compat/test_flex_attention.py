# SPDX-License-Identifier: Apache-2.0
"""torch's own flex_attention is the measure, with the masks and scores that people write for it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention import flex_attention as of_torch
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    create_mask,
    noop_mask,
)

from flash_attention import attention
from flash_attention.compat import block_masks
from flash_attention.compat import flex_attention as here
from flash_attention.compat.block_masks import BlockMaskLists
from flash_attention.errors import UnsupportedError
from tests.compat.flex_functions import (
    HEADS,
    KEYS,
    Function,
    causal,
    heads_differ,
    masks,
    scores,
)
from tests.devices import HOPPER, HOPPER_DEVICES

BATCH, QUERIES, BLOCK = 2, 40, 16
flex_attention: Any = here.flex_attention  # its result has the shape that the options say
from_kv_blocks: Any = BlockMask.from_kv_blocks


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_torch, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def tensors(
    seq_q: int = QUERIES, seq_k: int = KEYS, heads_k: int = HEADS, dtype: Any = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=dtype)
    shapes = (BATCH, HEADS, seq_q, 16), (BATCH, heads_k, seq_k, 16), (BATCH, heads_k, seq_k, 24)
    q, k, v = (draw(*shape) for shape in shapes)
    return q, k, v


def blocked(mask: Function, seq_q: int = QUERIES, seq_k: int = KEYS, **options: Any) -> BlockMask:
    sizes: dict[str, Any] = {
        "B": BATCH,
        "H": HEADS,
        "Q_LEN": seq_q,
        "KV_LEN": seq_k,
        "device": "cpu",
    } | options
    return create_block_mask(mask, **{"BLOCK_SIZE": BLOCK, **sizes})


def by_definition(
    q: Tensor, k: Tensor, v: Tensor, *, score: Function | None = None, seen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output and lse with torch's vmap of the score function, which autograd goes through."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    scaled = q @ k.mT * q.shape[-1] ** -0.5
    if score is not None:
        axes = [torch.arange(n, device=q.device) for n in scaled.shape]
        change = score
        for place in (4, 3, 2, 1):
            dims: list[int | None] = [0, *(None,) * 4]
            dims[place] = 0
            change = torch.vmap(change, tuple(dims))
        with TransformGetItemToIndex():
            scaled = change(scaled, *axes)
    if seen is not None:
        scaled = scaled.masked_fill(~seen, -math.inf)
    hidden = (scaled == -math.inf).all(-1, keepdim=True)
    weights = scaled.masked_fill(hidden, 0).softmax(-1).masked_fill(hidden, 0)
    return weights @ v, scaled.logsumexp(-1)


def check(mask: Function | None, score: Function | None, heads_k: int = HEADS) -> None:
    """Forward against torch's function, gradients against autograd by definition."""
    given = tensors(heads_k=heads_k)
    block_mask = None if mask is None else blocked(mask)
    shared = heads_k < HEADS
    asked: dict[str, Any] = {"score_mod": score, "block_mask": block_mask, "enable_gqa": shared}
    wanted, aux = of_torch.flex_attention(*given, **asked, return_aux=AuxRequest(lse=True))
    found = flex_attention(*given, **asked, return_lse=True)
    assert isinstance(found, tuple)
    torch.testing.assert_close(found, (wanted, aux.lse), rtol=1e-6, atol=1e-6)
    seen = None if mask is None else create_mask(mask, BATCH, HEADS, QUERIES, KEYS, device="cpu")
    results = []
    for compute in (
        partial(flex_attention, **asked),
        partial(by_definition, score=score, seen=seen),
    ):
        leaves = [t.clone().requires_grad_() for t in given]
        out: Any = compute(*leaves)
        out = out if isinstance(out, Tensor) else out[0]
        weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
        results.append(torch.autograd.grad((out * weights).sum(), leaves))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", masks())
def test_masks(name: str) -> None:
    check(masks()[name], None)


@pytest.mark.parametrize("name", scores())
def test_scores(name: str) -> None:
    check(None, scores()[name])


@pytest.mark.parametrize(
    ("mask", "score"),
    [("causal", "alibi"), ("documents", "softcap"), ("natten", "times"), ("dilated", "masked")],
)
def test_both_with_shared_heads(mask: str, score: str) -> None:
    check(masks()[mask], scores()[score], heads_k=2)


def test_neither() -> None:
    check(None, None)
    check(noop_mask, None)


def test_attention_takes_the_functions_as_they_are() -> None:
    q, k, v = tensors()
    score, mask = scores()["alibi"], masks()["documents"]
    wanted = of_torch.flex_attention(q, k, v, score_mod=score, block_mask=blocked(mask))
    given = (t.transpose(1, 2) for t in (q, k, v))
    found = attention(*given, score=score, mask=mask).transpose(1, 2)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def listed(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Lists of blocks of keys, those of each block of queries."""
    counts = torch.tensor([[[len(row) for row in rows]]], dtype=torch.int32)
    width = -(-KEYS // BLOCK)
    indices = torch.tensor([[[row + [0] * (width - len(row)) for row in rows]]])
    return counts, indices.int()


PARTIAL, FULL = [[0], [3, 1], []], [[2], [], [0, 1]]


@pytest.mark.parametrize("mask_mod", [None, noop_mask, causal])
@pytest.mark.parametrize("with_full", [False, True])
def test_blocks_that_are_not_listed_are_hidden(mask_mod: Any, with_full: bool) -> None:
    """As in torch's kernels: its CPU path reads the mask function alone."""
    full = listed(FULL) if with_full else (None, None)
    lengths = {"seq_lengths": (QUERIES, KEYS), "BLOCK_SIZE": BLOCK, "mask_mod": mask_mod}
    block_mask = from_kv_blocks(*listed(PARTIAL), *full, **lengths)
    rows, columns = torch.arange(QUERIES)[:, None], torch.arange(KEYS)
    seen = rows >= columns if mask_mod is causal else torch.ones(QUERIES, KEYS, dtype=torch.bool)
    for row, column in ((r, c) for r in range(3) for c in range(4)):
        block = seen[row * BLOCK :, column * BLOCK :][:BLOCK, :BLOCK]
        if with_full and column in FULL[row]:
            block.fill_(True)
        elif column not in PARTIAL[row]:
            block.fill_(False)
    given = tensors()
    wanted = by_definition(*given, seen=seen)
    found = flex_attention(*given, block_mask=block_mask, return_lse=True)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_lists_of_each_head_and_batch_are_their_own() -> None:
    counts = torch.ones(BATCH, HEADS, 3, dtype=torch.int32)
    indices = torch.arange(BATCH * HEADS * 12).view(BATCH, HEADS, 3, 4) % 5 % 4
    lengths = {"seq_lengths": (QUERIES, KEYS), "BLOCK_SIZE": BLOCK}
    block_mask = from_kv_blocks(counts, indices.int(), **lengths)
    blocks = torch.nn.functional.one_hot(indices[..., 0].long(), 4).bool()
    seen = blocks.repeat_interleave(BLOCK, 2)[:, :, :QUERIES].repeat_interleave(BLOCK, 3)
    given = tensors()
    wanted = by_definition(*given, seen=seen[..., :KEYS])[0]
    torch.testing.assert_close(flex_attention(*given, block_mask=block_mask), wanted)


@pytest.mark.parametrize("most", [1, 1 << 23])
def test_one_block_that_is_missing_is_found(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Lists of one head differ from the function in one block."""
    monkeypatch.setattr(block_masks, "MOST_SCORES", most)
    given, made = tensors(), blocked(heads_differ)
    counts, indices = made.full_kv_num_blocks, made.full_kv_indices
    assert counts is not None
    assert indices is not None
    assert (int(counts[1, 2, 1]), int(indices[1, 2, 1, 0])) == (1, 0)
    counts[1, 2, 1] = 0
    seen = create_mask(heads_differ, BATCH, HEADS, QUERIES, KEYS, device="cpu")
    seen[1, 2, BLOCK : 2 * BLOCK, :BLOCK] = False
    wanted = by_definition(*given, seen=seen)[0]
    torch.testing.assert_close(flex_attention(*given, block_mask=made), wanted)


def test_a_block_mask_may_change_between_calls() -> None:
    given = tensors()
    counts, indices = listed([[0], [1], [2]])
    lengths = {"seq_lengths": (QUERIES, KEYS), "BLOCK_SIZE": BLOCK}
    block_mask = from_kv_blocks(counts, indices, **lengths)
    before = flex_attention(*given, block_mask=block_mask)
    indices[..., 0] = 3
    last = torch.arange(KEYS) >= 3 * BLOCK
    wanted = by_definition(*given, seen=last.expand(QUERIES, KEYS))[0]
    torch.testing.assert_close(flex_attention(*given, block_mask=block_mask), wanted)
    assert not torch.allclose(before, wanted)
    block_mask.mask_mod = lambda b, h, q, k: k >= KEYS - 2
    wanted = by_definition(*given, seen=(torch.arange(KEYS) >= KEYS - 2).expand(QUERIES, KEYS))[0]
    torch.testing.assert_close(flex_attention(*given, block_mask=block_mask), wanted)


def test_lists_made_in_inference_mode_may_change_too() -> None:
    given = tensors()
    with torch.inference_mode():
        counts, indices = listed([[0], [1], [2]])
        lengths = {"seq_lengths": (QUERIES, KEYS), "BLOCK_SIZE": BLOCK}
        block_mask = from_kv_blocks(counts, indices, **lengths)
        for block in (0, 2):
            indices[..., 0] = block
            seen = (torch.arange(KEYS) // BLOCK == block).expand(QUERIES, KEYS)
            wanted = by_definition(*given, seen=seen)[0]
            torch.testing.assert_close(flex_attention(*given, block_mask=block_mask), wanted)


def test_no_queries_or_no_keys() -> None:
    for seq_q, seq_k in ((0, KEYS), (QUERIES, 0)):
        given = tensors(seq_q, seq_k)
        counts = torch.ones(1, 1, 3, dtype=torch.int32)
        indices = torch.zeros(1, 1, 3, 4, dtype=torch.int32)
        lengths = {"seq_lengths": (seq_q, seq_k), "BLOCK_SIZE": BLOCK, "mask_mod": causal}
        block_mask = from_kv_blocks(counts, indices, **lengths)
        found = flex_attention(*given, block_mask=block_mask)
        torch.testing.assert_close(found, torch.zeros(BATCH, HEADS, seq_q, 24).double())


def test_keys_that_batches_share() -> None:
    q, k, v = tensors()
    asked: dict[str, Any] = {"block_mask": blocked(causal)}
    wanted = of_torch.flex_attention(q, k[:1], v[:1], **asked)
    torch.testing.assert_close(flex_attention(q, k[:1], v[:1], **asked), wanted)


def test_columns_that_are_not_contiguous_and_another_scale() -> None:
    q, k, v = (t.mT.contiguous().mT for t in tensors())
    asked: dict[str, Any] = {"score_mod": scores()["softcap"], "scale": 0.5}
    wanted = of_torch.flex_attention(q, k, v, **asked)
    torch.testing.assert_close(flex_attention(q, k, v, **asked), wanted)


def test_numbers_that_tune_torch_are_ignored_and_aux_is_as_torchs() -> None:
    given = tensors()
    options: Any = {"BLOCK_M": 64, "fwd_num_warps": 4, "BACKEND": "AUTO"}
    found: Any = flex_attention(*given, kernel_options=options, return_aux=AuxRequest(lse=True))
    wanted = by_definition(*given)
    torch.testing.assert_close((found[0], found[1].lse), wanted)
    assert found[1].max_scores is None


def refused(message: str, *given: Any, **options: Any) -> None:
    with pytest.raises(UnsupportedError, match=message):
        flex_attention(*(given or tensors()), **options)


def test_what_is_refused() -> None:
    q, k, v = tensors()
    refused(r"block_mask is for .*\(2, 4, 40, 40\), and query and key have \(2, 4, 40, 56\)",
            block_mask=blocked(causal, seq_k=40))  # fmt: skip
    refused("block_mask is <function.*; pass a BlockMask", block_mask=causal)
    refused("block_mask is for", block_mask=blocked(causal, seq_q=48))
    refused("where 1 stands for any batch", block_mask=blocked(causal, B=3))
    refused(r"block_mask is on meta, query on cpu", block_mask=blocked(causal).to("meta"))
    refused("kernel_options has BACKEND='FLASH'", kernel_options={"BACKEND": "FLASH"})
    refused("kernel_options has SPLIT=2", kernel_options={"SPLIT": 2})
    refused("max_scores", return_aux=AuxRequest(max_scores=True))
    refused("pass one of the two", return_aux=AuxRequest(lse=True), return_lse=True)
    refused("enable_gqa=True", *tensors(heads_k=2))
    refused("allowed is .batch, heads, seq, d.", q[0], k[0], v[0])
    refused("scale is -1", scale=-1.0)
    with pytest.raises(RuntimeError, match="mask_mod from a sliced BlockMask"):
        flex_attention(q, k, v, block_mask=blocked(causal)[:, :, :1])


def test_learned_biases_have_gradients() -> None:
    given, learned = tensors(), torch.linspace(-1, 1, KEYS, dtype=torch.float64)
    learned.requires_grad_()
    found = flex_attention(*given, score_mod=lambda s, b, h, q, k: s + learned[k])
    wanted = (given[0] @ given[1].mT / 4 + learned).softmax(-1) @ given[2]
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    mine, theirs = (torch.autograd.grad(each.square().sum(), learned) for each in (found, wanted))
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def near(found: Tensor, wanted: Tensor) -> None:
    """Compare results of 16 bits."""
    assert float((found.double() - wanted).abs().max()) < 0.02 * float(wanted.abs().max())


LONG_Q, LONG_K = 200, 328


def on_device(device: str, heads_k: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    q, k, v = (
        draw(BATCH, seq, heads, 64).transpose(1, 2).to(device, torch.bfloat16)
        for seq, heads in ((LONG_Q, HEADS), (LONG_K, heads_k), (LONG_K, heads_k))
    )
    return q, k, v


@pytest.mark.slow
@pytest.mark.parametrize("device", HOPPER_DEVICES)
def test_a_kernel_with_lists_of_blocks(device: str) -> None:
    """The emulator runs the kernel on the CPU."""
    given = on_device(device)
    score = scores(device, LONG_K)["table of distances"]
    counts = torch.ones(1, 1, 4, dtype=torch.int32, device=device)
    indices = torch.zeros(1, 1, 4, 6, dtype=torch.int32, device=device)
    indices[0, 0, :, 0] = torch.tensor([4, 1, 2, 0])
    lengths: dict[str, Any] = {"seq_lengths": (LONG_Q, LONG_K), "BLOCK_SIZE": 64}
    block_mask = from_kv_blocks(counts, indices, counts, indices + 1, **lengths)
    block_mask.mask_mod = lambda b, h, q, k: (q + k) % 2 == h % 2
    if device == "cuda":
        found: Any = flex_attention(*given, score, block_mask, enable_gqa=True)
    else:
        mask = BlockMaskLists(block_mask, LONG_Q, LONG_K).mask
        q, k, v = (t.transpose(1, 2) for t in given)
        found = attention(q, k, v, score=score, mask=mask, config="rung:26").transpose(1, 2)
    place = torch.arange(LONG_Q, device=device)[:, None], torch.arange(LONG_K, device=device)
    listed = indices[0, 0, :, :1].long()[place[0][:, 0] // 64]
    even = (place[0] + place[1]) % 2 == torch.arange(HEADS, device=device)[:, None, None] % 2
    blocks = place[1] // 64
    seen = (blocks == listed + 1) | ((blocks == listed) & even)
    near(found, by_definition(*(t.double() for t in given), score=score, seen=seen)[0])


@HOPPER
@pytest.mark.parametrize("name", [*masks(), *scores()])
def test_kernels_and_their_gradients(name: str) -> None:
    mask = masks("cuda", LONG_K).get(name)
    score = scores("cuda", LONG_K).get(name)
    sizes = (BATCH, HEADS, LONG_Q, LONG_K)
    block_mask = None if mask is None else create_block_mask(mask, *sizes, device="cuda")
    seen = None if mask is None else create_mask(mask, *sizes, device="cuda")
    leaves = [t.requires_grad_() for t in on_device("cuda")]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    found: Any = flex_attention(*leaves, score, block_mask, enable_gqa=True, return_lse=True)
    wanted = by_definition(*exact, score=score, seen=seen)
    near(found[0], wanted[0])
    torch.testing.assert_close(found[1].double(), wanted[1], rtol=1e-2, atol=1e-2)
    weights = torch.randn_like(wanted[0])
    of_found = torch.autograd.grad((found[0] * weights).sum(), leaves)
    of_wanted = torch.autograd.grad((wanted[0] * weights).sum(), exact)
    for gradient, exactly in zip(of_found, of_wanted, strict=True):
        near(gradient, exactly)
