# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's forward and backward pass by themselves and as operators of torch, called as
Transformer Engine, Megatron and torch call them, against gradients of attention in float64."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.compat import flash_attn_3_passes, install, uninstall
from flash_attention.errors import UnsupportedError

DEVICES = [
    ("cpu", torch.float64, 1e-9),
    pytest.param("cuda", torch.bfloat16, 2e-2, marks=pytest.mark.gpu),
]
STARTS = [0, 6, 16]
HEADS, HEADS_K, D = 4, 2, 32


@pytest.fixture
def interface() -> Iterator[Any]:
    install()
    yield import_module("flash_attn_interface")
    uninstall()


def draw(*shape: int, dtype: torch.dtype, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(shape[-2])
    return torch.randn(shape, generator=generator).to(device, dtype)


def close(given: Tensor, wanted: Tensor, tolerance: float) -> None:
    wanted = wanted.detach().double()
    assert given.shape == wanted.shape
    error = (given.double() - wanted).abs().max()
    assert float(error) <= tolerance * (1 + float(wanted.abs().max()))


def starts(device: str) -> Tensor:
    return torch.tensor(STARTS, dtype=torch.int32, device=device)


@pytest.mark.parametrize(("device", "dtype", "tolerance"), DEVICES)
@pytest.mark.parametrize("packed", [False, True])
def test_passes_as_transformer_engine_calls_them(
    interface: Any, packed: bool, device: str, dtype: torch.dtype, tolerance: float
) -> None:
    """Positional up to v_descale and up to dv, then by keyword. Dense calls have lengths too."""
    rows = (16,) if packed else (2, 8)
    kind: Any = {"dtype": dtype, "device": device}
    q, k, v, dout = (draw(*rows, n, D, **kind) for n in (HEADS, HEADS_K, HEADS_K, HEADS))
    of = (starts(device), starts(device)) if packed else (None, None)
    longest = (10, 10) if packed else (8, 8)
    options: dict[str, Any] = {
        "softmax_scale": 0.3,
        "window_size_left": 3,
        "window_size_right": 0,
    }
    out, lse, *rest = interface._flash_attn_forward(
        *(q, k, v, *[None] * 4, *of, None, None, None, *longest, *[None] * 9),
        causal=True,
        **options,
    )
    assert len(rest) == 2
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    keywords: dict[str, Any] = {"causal": True, "window": (3, 0), "softmax_scale": 0.3}
    if packed:
        keywords |= dict(zip(("cu_seqlens_q", "cu_seqlens_k"), of, strict=True))
        keywords |= {"max_seqlen_q": 10, "max_seqlen_k": 10}
    on_cpu: Any = {n: t.cpu() if isinstance(t, Tensor) else t for n, t in keywords.items()}
    wanted, wanted_lse = attention(*(t.cpu() for t in leaves), **on_cpu, return_lse=True)
    close(out, wanted.to(device), tolerance)
    close(lse, wanted_lse.to(device), tolerance)
    rooms = [torch.full_like(t, math.nan) for t in (q, k, v)]
    sums = interface._flash_attn_backward(
        *(dout, q, k, v, out, lse, *of, None, None, *longest, *rooms),
        is_causal=True,
        deterministic=False,
        **options,
    )
    wanted.backward(dout.double().cpu())
    for room, leaf in zip(rooms, leaves, strict=True):
        assert leaf.grad is not None
        close(room, leaf.grad, tolerance)
    assert sums.shape == lse.shape
    close(sums, (dout.double() * wanted.to(device)).sum(-1).mT, max(tolerance, 1e-5))


@pytest.mark.parametrize(("device", "dtype", "tolerance"), DEVICES)
def test_padding_between_sequences(
    interface: Any, device: str, dtype: torch.dtype, tolerance: float
) -> None:
    """Sequences whose last rows are padding, as seqused says, equal those without it."""
    used = torch.tensor([4, 10], dtype=torch.int32, device=device)
    kind: Any = {"dtype": dtype, "device": device}
    q, k, v, dout = (draw(16, n, D, **kind) for n in (HEADS, HEADS_K, HEADS_K, HEADS))
    real = torch.tensor([*range(4), *range(6, 16)], device=device)
    short = torch.tensor([0, 4, 14], dtype=torch.int32, device=device)

    def both(rows: Any, begins: Tensor, counted: Tensor | None) -> list[Tensor]:
        tensors = [t[rows] for t in (q, k, v, dout)]
        of = (begins, begins, counted, counted, 10, 10)
        out, lse, *_ = interface._flash_attn_forward(
            *tensors[:3], cu_seqlens_q=begins, cu_seqlens_k=begins, seqused_q=counted,
            seqused_k=counted, max_seqlen_q=10, max_seqlen_k=10, causal=True,
        )  # fmt: skip
        rooms = [torch.full_like(t, math.nan) for t in tensors[:3]]
        interface._flash_attn_backward(tensors[3], *tensors[:3], out, lse, *of, *rooms, None, True)
        return [out, *rooms]

    padded = both(slice(None), starts(device), used)
    for given, wanted in zip(padded, both(real, short, None), strict=True):
        close(given[real], wanted, tolerance)


def test_a_cache_with_pages_and_new_rows(interface: Any) -> None:
    """As flash_attn_with_kvcache, and with room for the output."""
    kind: Any = {"dtype": torch.float32, "device": "cpu"}
    q, new_k, new_v = (draw(2, 1, n, D, **kind) for n in (HEADS, HEADS_K, HEADS_K))
    caches = [draw(4, 8, HEADS_K, D, **kind) for _ in range(2)]
    table, used = torch.tensor([[3, 1], [0, 2]]).int(), torch.tensor([5, 9]).int()
    wanted, wanted_lse, *_ = interface.flash_attn_with_kvcache(
        *(q, *(c.clone() for c in caches), new_k, new_v),
        page_table=table,
        cache_seqlens=used,
        causal=True,
        return_softmax_lse=True,
    )
    room = torch.full_like(q, math.nan)
    out, lse, *_ = torch.ops.flash_attn_3.fwd(
        *(q, *caches, new_k, new_v, None, room), seqused_k=used, page_table=table, is_causal=True
    )
    assert torch.equal(room, wanted)
    assert torch.equal(out, wanted)
    assert torch.equal(lse, wanted_lse)


def test_queries_are_left_out_of_packed_sequences_alone(interface: Any) -> None:
    q = torch.zeros(2, 8, HEADS, D)
    with pytest.raises(UnsupportedError, match=r"seqused_q is given, .*pass cu_seqlens_q and"):
        interface._flash_attn_forward(q, q, q, seqused_q=torch.zeros(2).int())


def test_operators_come_and_go() -> None:
    install()
    assert torch.ops.flash_attn_3.fwd.default is not None
    uninstall()
    assert not hasattr(torch.ops.flash_attn_3, "fwd")
    assert not hasattr(torch.ops.flash_attn_3, "bwd")
    install()
    assert hasattr(torch.ops.flash_attn_3, "bwd")
    uninstall()


@pytest.mark.usefixtures("interface")
def test_torch_calls_the_operators_with_these_arguments() -> None:
    """What torch runs after activate_flash_attention_impl("FA3"), on tensors of the CPU."""
    fa3 = pytest.importorskip("torch.nn.attention._fa3")
    registry: Any = torch.nn.attention
    registry.activate_flash_attention_impl("FA3")
    try:
        q, k, v, dout = (draw(2, 8, HEADS, D, dtype=torch.float64, device="cpu") for _ in range(4))
        room = torch.empty_like(q)
        out, lse = fa3._fa3_run_forward(
            q, k, v, None, None, 8, 8, 0.3, True, None, None, None, out=room
        )
        leaves = [t.requires_grad_() for t in (q, k, v)]
        wanted = attention(*leaves, causal=True, softmax_scale=0.3)
        assert torch.equal(out, room)
        close(out, wanted, 1e-9)
        wanted.backward(dout)
        found = fa3._fa3_run_backward(
            *(dout, *(t.detach() for t in leaves), out, lse, None, None, 8, 8, 0.3, True, -1, -1)
        )
        for gradient, leaf in zip(found, leaves, strict=True):
            assert leaf.grad is not None
            close(gradient, leaf.grad, 1e-9)
    finally:
        registry.restore_flash_attention_impl()


@pytest.mark.usefixtures("interface")
def test_operators_and_functions_have_the_parameters_of_flash_attention_3() -> None:
    forward, backward = (
        [a.name for a in getattr(torch.ops.flash_attn_3, name).default._schema.arguments]
        for name in ("fwd", "bwd")
    )
    assert (len(forward), len(backward)) == (34, 22)
    own = list(inspect.signature(flash_attn_3_passes.flash_attn_forward).parameters)
    renamed = {"q_v": "qv", "out": "out_", "is_causal": "causal"}
    renamed["is_rotary_interleaved"] = "rotary_interleaved"
    assert [renamed.get(name, name) for name in forward] == own
    of_gradients = list(inspect.signature(flash_attn_3_passes.flash_attn_backward).parameters)
    assert [*of_gradients[:6], *of_gradients[12:15], *of_gradients[6:12], *of_gradients[15:]] == [
        {"seqused_q": "sequed_q", "seqused_k": "sequed_k"}.get(name, name) for name in backward
    ]
