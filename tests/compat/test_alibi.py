# SPDX-License-Identifier: Apache-2.0
"""flash-attn's alibi_slopes against biases that are written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.compat import flash_attn, flash_attn_passes
from flash_attention.errors import UnsupportedError
from flash_attention.reference.judge import cu_seqlens
from tests.decode_cases import in_pages, shuffled_table
from tests.devices import HOPPER

flash_attn_func: Any = flash_attn.flash_attn_func
flash_attn_varlen_func: Any = flash_attn.flash_attn_varlen_func
flash_attn_with_kvcache: Any = flash_attn.flash_attn_with_kvcache
flash_attn_backward: Any = flash_attn_passes.flash_attn_backward
flash_attn_forward: Any = flash_attn_passes.flash_attn_forward
flash_attn_varlen_backward: Any = flash_attn_passes.flash_attn_varlen_backward
flash_attn_varlen_forward: Any = flash_attn_passes.flash_attn_varlen_forward

BATCH, HEADS, HEADS_K, D = 3, 4, 2, 64
TOLERANCE = {"cpu": 1e-6, "cuda": 2e-2}
DEVICES = ["cpu", pytest.param("cuda", marks=HOPPER)]


def drawn(device: str, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    dtype = torch.float64 if device == "cpu" else torch.bfloat16
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def dense(device: str, seq_q: int, seq_k: int) -> list[Tensor]:
    keys = (BATCH, seq_k, HEADS_K, D)
    return drawn(device, (BATCH, seq_q, HEADS, D), keys, keys)


def slopes_of(device: str, by_batch: bool) -> Tensor:
    slopes = torch.linspace(0.02, 0.7, BATCH * HEADS).view(BATCH, HEADS).to(device)
    return slopes if by_batch else slopes[1]


def written_out(
    q: Tensor, k: Tensor, v: Tensor, *, slopes: Tensor, causal: bool = False, left: int = -1,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output, (seq_q, heads, d), and lse, (heads, seq_q), of one sequence in float64."""
    q, k, v = (t.double().transpose(0, 1) for t in (q, k, v))
    k, v = (t.repeat_interleave(HEADS // HEADS_K, 0) for t in (k, v))
    scores = q @ k.mT * D**-0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    rows, keys = scores.shape[1:]
    distance = torch.arange(rows)[:, None] + keys - rows - torch.arange(keys)
    distance = distance.to(q.device)
    scores = scores - slopes.double()[:, None, None] * distance.abs()
    if causal:
        scores = scores.masked_fill(distance < 0, -math.inf)
    if left >= 0:
        scores = scores.masked_fill(distance > left, -math.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return (weights @ v).transpose(0, 1), scores.logsumexp(-1)


def of_batch(given: Any, slopes: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    found = [
        written_out(*each, slopes=slopes[i] if slopes.ndim == 2 else slopes, **options)
        for i, each in enumerate(zip(*given, strict=True))
    ]
    return torch.stack([out for out, _ in found]), torch.stack([lse for _, lse in found])


def close(given: Tensor, wanted: Tensor) -> None:
    assert given.shape == wanted.shape
    tolerance = TOLERANCE[given.device.type] * (
        1 + wanted.detach().nan_to_num(neginf=0).abs().max()
    )
    torch.testing.assert_close(given.double(), wanted, rtol=0, atol=float(tolerance))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_batch", [False, True])
@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        ((150, 150), {}),
        ((150, 150), {"causal": True}),
        ((70, 210), {"causal": True}),
        ((210, 70), {}),
        ((70, 210), {"left": 30, "causal": True}),
        ((150, 150), {"causal": True, "softcap": 2.0}),
    ],
    ids=str,
)
def test_biases_of_dense_tensors_and_their_gradients(
    lengths: tuple[int, int], options: dict[str, Any], by_batch: bool, device: str
) -> None:
    leaves = [t.requires_grad_() for t in dense(device, *lengths)]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    slopes = slopes_of(device, by_batch)
    given = {n: x for n, x in options.items() if n != "left"}
    if "left" in options:
        given["window_size"] = (options["left"], -1)
    out, lse, _ = flash_attn_func(*leaves, **given, alibi_slopes=slopes, return_attn_probs=True)
    wanted, logarithms = of_batch(exact, slopes, **options)
    close(out, wanted)
    close(lse, logarithms)
    weights = torch.linspace(-1, 1, wanted.numel(), device=device).view(wanted.shape)
    found = torch.autograd.grad((out * weights).sum(), leaves)
    for gradient, exactly in zip(
        found, torch.autograd.grad((wanted * weights).sum(), exact), strict=True
    ):
        close(gradient, exactly)


LENGTHS_Q, LENGTHS_K = (70, 1, 40), (90, 33, 20)


def packed(device: str) -> tuple[list[Tensor], list[Any]]:
    keys = (sum(LENGTHS_K), HEADS_K, D)
    tensors = drawn(device, (sum(LENGTHS_Q), HEADS, D), keys, keys)
    starts = [cu_seqlens(LENGTHS_Q).to(device), cu_seqlens(LENGTHS_K).to(device)]
    return tensors, [*starts, max(LENGTHS_Q), max(LENGTHS_K)]


def sequences(tensors: list[Tensor]) -> list[tuple[Tensor, ...]]:
    q, k, v = tensors
    of_keys = (k.split(LENGTHS_K), v.split(LENGTHS_K))
    return list(zip(q.split(LENGTHS_Q), *of_keys, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_batch", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_biases_of_packed_sequences(causal: bool, by_batch: bool, device: str) -> None:
    tensors, lengths = packed(device)
    leaves = [t.requires_grad_() for t in tensors]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    slopes = slopes_of(device, by_batch)
    out = flash_attn_varlen_func(*leaves, *lengths, causal=causal, alibi_slopes=slopes)
    wanted = torch.cat(
        [
            written_out(*each, slopes=slopes[i] if by_batch else slopes, causal=causal)[0]
            for i, each in enumerate(sequences(exact))
        ]
    )
    close(out, wanted)
    weights = torch.linspace(-1, 1, wanted.numel(), device=device).view(wanted.shape)
    found = torch.autograd.grad((out * weights).sum(), leaves)
    for gradient, exactly in zip(
        found, torch.autograd.grad((wanted * weights).sum(), exact), strict=True
    ):
        close(gradient, exactly)


def test_biases_of_keys_and_values_in_one_tensor() -> None:
    q, k, v = dense("cpu", 9, 9)
    slopes = slopes_of("cpu", True)
    wanted = flash_attn_func(q, k, v, alibi_slopes=slopes)
    kv = torch.stack((k, v), 2)
    close(flash_attn.flash_attn_kvpacked_func(q, kv, alibi_slopes=slopes), wanted)  # type: ignore[arg-type]
    k, v = (t.repeat_interleave(HEADS // HEADS_K, 2) for t in (k, v))
    qkv = torch.stack((q, k, v), 2)
    close(flash_attn.flash_attn_qkvpacked_func(qkv, alibi_slopes=slopes), wanted)  # type: ignore[arg-type]


CACHED = (40, 17, 63)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_batch", [False, True])
@pytest.mark.parametrize(
    "asked", ["lengths", "splits", "int", "none", "new", "index", "left", "pages"]
)
def test_biases_with_a_cache(asked: str, by_batch: bool, device: str) -> None:
    q, k, v = dense(device, 4, 64)
    slopes = slopes_of(device, by_batch)
    lengths = torch.tensor(CACHED, dtype=torch.int32, device=device)
    given: dict[str, Any] = {"cache_seqlens": lengths}
    first, last, caches = [0] * BATCH, list(CACHED), (k.clone(), v.clone())
    if asked in ("int", "none"):
        given["cache_seqlens"] = 50 if asked == "int" else None
        last = [50 if asked == "int" else 64] * BATCH
    if asked == "splits":
        given["num_splits"] = 2
    if asked == "new":
        given |= {"k": k[:, :1], "v": v[:, :1]}
        last = [n + 1 for n in CACHED]
    if asked == "index":
        given["cache_batch_idx"] = torch.tensor([2, 0, 1], dtype=torch.int32, device=device)
        k, v = k[[2, 0, 1]], v[[2, 0, 1]]
    if asked == "left":
        first = [5, 0, 11]
        given["cache_leftpad"] = torch.tensor(first, dtype=torch.int32, device=device)
    if asked == "pages":
        table = shuffled_table(BATCH, 4, device)
        caches = (in_pages(k, table, 16), in_pages(v, table, 16))
        given["block_table"] = table
    out = flash_attn_with_kvcache(q, *caches, **given, causal=True, alibi_slopes=slopes)
    if asked == "new":
        k, v = caches
    for i in range(BATCH):
        keys = slice(first[i], last[i])
        own = slopes[i] if by_batch else slopes
        close(out[i], written_out(q[i], k[i, keys], v[i, keys], slopes=own, causal=True)[0])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_biases_of_pages_are_for_all_gpus(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (t.bfloat16() for t in dense("cpu", 1, 64))
    table = torch.arange(BATCH, dtype=torch.int32)[:, None]
    slopes = slopes_of("cpu", False)
    monkeypatch.setenv("FLASH_ATTENTION_STRICT", arch)
    paged = flash_attn_with_kvcache(q, k, v, block_table=table, alibi_slopes=slopes)
    close(paged, flash_attn_with_kvcache(q, k, v, alibi_slopes=slopes).double())


@pytest.mark.parametrize("device", DEVICES)
def test_biases_in_both_passes(device: str) -> None:
    q, k, v = dense(device, 40, 70)
    slopes, scale = slopes_of(device, True), D**-0.5
    rest = (0.0, scale, True, -1, -1, 0.0, slopes, False)
    out, lse, *_ = flash_attn_forward(q, k, v, *rest)
    exact = [t.double().requires_grad_() for t in (q, k, v)]
    wanted, logarithms = of_batch(exact, slopes, causal=True)
    close(out, wanted)
    close(lse, logarithms)
    dout = torch.linspace(-1, 1, out.numel(), device=device).view(out.shape).to(out.dtype)
    rooms = [torch.empty_like(t) for t in (q, k, v)]
    flash_attn_backward(dout, q, k, v, out, lse, *rooms, *rest)
    for room, exactly in zip(rooms, torch.autograd.grad(wanted, exact, dout.double()), strict=True):
        close(room, exactly)

    tensors, lengths = packed(device)
    rest = (*lengths, *rest)
    out, lse, *_ = flash_attn_varlen_forward(*tensors, *rest[:-1])
    leaves = [t.clone().requires_grad_() for t in tensors]
    options = {"causal": True, "softmax_scale": scale, "alibi_slopes": slopes}
    recorded = flash_attn_varlen_func(*leaves, *lengths, **options)
    close(out, recorded.detach().double())
    dout = torch.linspace(-1, 1, out.numel(), device=device).view(out.shape).to(out.dtype)
    rooms = [torch.empty_like(t) for t in tensors]
    flash_attn_varlen_backward(dout, *tensors, out, lse, *rooms, *rest)
    for room, gradient in zip(rooms, torch.autograd.grad(recorded, leaves, dout), strict=True):
        close(room, gradient.double())


@pytest.mark.parametrize(
    ("slopes", "message"),
    [
        (
            torch.ones(HEADS + 1),
            r"shape \(5,\).*\(4,\) or \(batch, heads\) = \(3, 4\)",
        ),
        (torch.ones(BATCH + 1, HEADS), r"alibi_slopes has shape \(4, 4\)"),
        (torch.ones(HEADS).double(), r"is torch\.float64; pass a torch\.float32 tensor"),
        (torch.ones(HEADS, device="meta"), "alibi_slopes is on meta; .* on cpu"),
        ([1.0] * HEADS, "alibi_slopes is a list; pass a"),
    ],
    ids=["heads", "batch", "dtype", "device", "list"],
)
def test_slopes_are_a_number_of_each_head(slopes: Any, message: str) -> None:
    q, k, v = dense("cpu", 4, 4)
    tensors, lengths = packed("cpu")
    cache = k.clone()
    calls: tuple[Callable[[], Any], ...] = (
        lambda: flash_attn_func(q, k, v, alibi_slopes=slopes),
        lambda: flash_attn_varlen_func(*tensors, *lengths, alibi_slopes=slopes),
        lambda: flash_attn_with_kvcache(
            q, cache, v, k[:, :1] + 1, v[:, :1], cache_seqlens=1, alibi_slopes=slopes
        ),
    )
    for call in calls:
        with pytest.raises(UnsupportedError, match=message):
            call()
    assert torch.equal(cache, k)
