# SPDX-License-Identifier: Apache-2.0
"""flash-attn's rotary embeddings, against rotations of complex numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.compat.rotary_layers import (
    RotaryEmbedding,
    apply_rotary,
    apply_rotary_emb,
    apply_rotary_emb_kv_,
    apply_rotary_emb_qkv_,
    apply_rotary_emb_torch,
    rotate_half,
)
from flash_attention.errors import UnsupportedError

HEADS, D, ROWS, KNOWN = 3, 12, 7, 10


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def angles(dim: int, rows: int = KNOWN) -> Tensor:
    return torch.outer(torch.arange(rows).double(), 0.7 ** torch.arange(dim // 2).double())


def turned(x: Tensor, angle: Tensor, interleaved: bool) -> Tensor:
    """Rotate x, (rows, heads, d), by the angles (rows, dim / 2)."""
    half = angle.shape[-1]
    pairs = x[..., : 2 * half].double()
    order = (half, 2) if interleaved else (2, half)
    pairs = pairs.unflatten(-1, order)
    pairs = pairs if interleaved else pairs.mT
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    result = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    result = result if interleaved else result.mT
    return torch.cat((result.flatten(-2), x[..., 2 * half :].double()), dim=-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dim", [D, 8])
@pytest.mark.parametrize("offsets", [0, 2, (3, 0)])
def test_rows_turn_by_the_angles_of_their_positions(
    offsets: Any, dim: int, interleaved: bool, dtype: torch.dtype
) -> None:
    x, angle = draw(2, ROWS, HEADS, D, dtype=dtype), angles(dim)
    first = offsets if isinstance(offsets, tuple) else (offsets, offsets)
    given_offsets = torch.tensor(offsets) if isinstance(offsets, tuple) else offsets
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    rounded = torch.atan2(sin.double(), cos.double())
    length = torch.hypot(cos.double(), sin.double())
    wanted = torch.stack(
        [
            turned(rows, rounded[start : start + ROWS], interleaved)
            for rows, start in zip(x, first, strict=True)
        ]
    )
    for i, start in enumerate(first):  # the rounded cos and sin of an angle have another length
        scale = length[start : start + ROWS]
        scale = scale.repeat_interleave(2, -1) if interleaved else torch.cat((scale, scale), -1)
        wanted[i, ..., :dim] *= scale[:, None]
    before = x.clone()
    given = apply_rotary(x, cos, sin, given_offsets, interleaved=interleaved)
    assert torch.equal(x, before)
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(given.double(), wanted, rtol=step, atol=step)
    back = apply_rotary(given, cos, sin, given_offsets, interleaved=interleaved, conjugate=True)
    torch.testing.assert_close(back, x, rtol=8 * step, atol=8 * step)
    assert apply_rotary(x, cos, sin, given_offsets, None, None, interleaved, inplace=True) is x
    assert torch.equal(x, given)


@pytest.mark.parametrize("offsets", [0, 2, (3, 0, 1)])
def test_packed_rows_start_at_their_sequence(offsets: Any) -> None:
    x, angle = draw(13, HEADS, D), angles(D)
    starts = [1, 5, 5, 11]  # rows before and behind all sequences are left as they are
    first = offsets if isinstance(offsets, tuple) else (offsets,) * 3
    wanted = x.clone()
    for start, end, offset in zip(starts, starts[1:], first, strict=False):
        if end > start:
            wanted[start:end] = turned(x[start:end], angle[offset : offset + end - start], False)
    given = apply_rotary(
        *(x, angle.cos(), angle.sin()),
        torch.tensor(offsets) if isinstance(offsets, tuple) else offsets,
        torch.tensor(starts, dtype=torch.int32),
        max_seqlen=6,
    )
    torch.testing.assert_close(given, wanted, rtol=1e-6, atol=1e-6)


def test_a_row_without_angles_is_not_rotated() -> None:
    x, angle = draw(2, 4, HEADS, D), angles(D, rows=5)
    given = apply_rotary(x, angle.cos(), angle.sin(), torch.tensor([3, 0]))
    wanted = torch.stack((x[0], turned(x[1], angle[:4], False)))
    wanted[0, :2] = turned(x[0, :2], angle[3:], False)
    torch.testing.assert_close(given, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_rotation_in_the_precision_of_torch(interleaved: bool) -> None:
    x, angle = draw(2, ROWS, HEADS, D), angles(8, ROWS)
    wanted = torch.stack([turned(rows, angle, interleaved) for rows in x])
    of_rows = (angle.cos(), angle.sin())
    for cos, sin in (of_rows, [t.expand(2, -1, -1) for t in of_rows]):
        given = apply_rotary_emb_torch(x, cos, sin, interleaved)
        torch.testing.assert_close(given, wanted)
    right = angles(D, 1).fill_(torch.pi / 2).expand(ROWS, -1)
    torch.testing.assert_close(rotate_half(x[0], interleaved), turned(x[0], right, interleaved))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_gradients_are_rotated_back(inplace: bool, interleaved: bool) -> None:
    x, angle = draw(2, ROWS, HEADS, D), angles(8)
    cos, sin, do = angle.cos(), angle.sin(), draw(2, ROWS, HEADS, D).flip(0)
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    wanted = torch.stack([turned(rows, angle[2:9], interleaved) for rows in leaves[0]])
    q, _ = torch.stack((leaves[1] * 2, leaves[1])).unbind(0)  # one of several views
    given = apply_rotary_emb(q, cos, sin, interleaved, inplace, seqlen_offsets=2)
    torch.testing.assert_close(given, 2 * wanted, rtol=1e-6, atol=1e-6)
    wanted.backward(2 * do)
    given.backward(do)
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad, rtol=1e-6, atol=1e-6)


def test_gradients_of_gradients() -> None:
    angle = angles(8, ROWS).float()
    rotate = (angle.cos(), angle.sin())
    x = draw(1, ROWS, 1, D, dtype=torch.float32).requires_grad_()
    (first,) = torch.autograd.grad(apply_rotary_emb(x, *rotate).pow(3).sum(), x, create_graph=True)
    (given,) = torch.autograd.grad(first.square().sum(), x)
    (first,) = torch.autograd.grad(
        apply_rotary_emb_torch(x, *rotate).pow(3).sum(), x, create_graph=True
    )
    (wanted,) = torch.autograd.grad(first.square().sum(), x)
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("grouped", [False, True])
def test_qkv_and_kv_in_place(grouped: bool) -> None:
    angle, other = angles(8), angles(8) / 2
    leaf = draw(2, ROWS, *((5, D) if grouped else (3, HEADS, D)))
    parts: tuple[Any, Any] = (slice(3), slice(3, 4)) if grouped else (0, 1)
    given_leaf, wanted_leaf = (leaf.clone().requires_grad_() for _ in range(2))
    qkv = given_leaf * 1
    given = apply_rotary_emb_qkv_(
        *(qkv, angle.cos(), angle.sin(), other.cos(), other.sin()),
        num_heads_q=3 if grouped else None,
    )
    wanted = wanted_leaf * 1
    for part, of_part in zip(parts, (angle, other), strict=True):
        rows = [turned(batch[:, part], of_part[:ROWS], False) for batch in wanted_leaf]
        wanted = wanted.clone()
        wanted[:, :, part] = torch.stack(rows)
    torch.testing.assert_close(given, wanted, rtol=1e-6, atol=1e-6)
    assert given.data_ptr() == qkv.data_ptr()
    for result in (given, wanted):
        result.backward(leaf.flip(0))
    torch.testing.assert_close(given_leaf.grad, wanted_leaf.grad, rtol=1e-6, atol=1e-6)
    kv = draw(2, ROWS, 2, HEADS, D)
    before = kv.clone()
    rotated = apply_rotary_emb_kv_(kv, angle.cos(), angle.sin(), True, torch.tensor([1, 0]))
    assert rotated.data_ptr() == kv.data_ptr()
    assert torch.equal(kv[:, :, 1], before[:, :, 1])
    for i, start in enumerate((1, 0)):
        keys = turned(before[i, :, 0], angle[start : start + ROWS], True)
        torch.testing.assert_close(kv[i, :, 0], keys, rtol=1e-6, atol=1e-6)


def test_the_module_turns_q_and_k() -> None:
    module = RotaryEmbedding(8, base=100.0)
    angle = torch.outer(torch.arange(KNOWN).double(), 100.0 ** (-torch.arange(0, 8, 2) / 8))
    qkv = draw(2, ROWS, 3, HEADS, D)
    before = qkv.clone()
    module(qkv, seqlen_offset=3)
    assert module._seq_len_cached == KNOWN
    for i in range(2):
        for part in (0, 1):
            wanted = turned(before[i, :, part], angle[3:], False)
            torch.testing.assert_close(qkv[i, :, part], wanted, rtol=1e-6, atol=1e-6)
    assert torch.equal(qkv[:, :, 2], before[:, :, 2])
    kept = module._cos_cached
    q, kv = before[:, :, 0].clone(), before[:, :, 1:].clone()
    given_q, given_kv = module(q, kv, seqlen_offset=3)
    assert module._cos_cached is kept
    torch.testing.assert_close(given_q, qkv[:, :, 0])
    torch.testing.assert_close(given_kv, qkv[:, :, 1:])
    assert not module.state_dict()


def test_scales_of_xpos_cancel_between_q_and_k() -> None:
    module = RotaryEmbedding(8, scale_base=4.0)
    q, kv = draw(1, ROWS, HEADS, 8), draw(1, ROWS, 2, HEADS, 8)
    plain = RotaryEmbedding(8)(q.clone(), kv.clone())
    scaled = module(q.clone(), kv.clone())
    power = (torch.arange(ROWS).double() - ROWS // 2) / 4.0
    scale = ((torch.arange(0, 8, 2) + 3.2) / 11.2) ** power[:, None]
    scale = torch.cat((scale, scale), dim=-1)[:, None]
    torch.testing.assert_close(scaled[0], plain[0] * scale, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scaled[1][:, :, 0], plain[1][:, :, 0] / scale, rtol=1e-5, atol=1e-5)
    assert torch.equal(scaled[1][:, :, 1], kv[:, :, 1])


def test_angles_stay_exact_in_a_model_of_16_bits() -> None:
    module = RotaryEmbedding(64).to(torch.bfloat16)
    assert module.inv_freq.dtype == torch.bfloat16
    module._update_cos_sin_cache(5000, torch.device("cpu"), torch.float32)
    exact = RotaryEmbedding(64)
    exact._update_cos_sin_cache(5000, torch.device("cpu"), torch.float32)
    assert module._cos_cached is not None
    assert exact._cos_cached is not None
    assert torch.equal(module._cos_cached, exact._cos_cached)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        (r"x has shape \(7, 3, 12\)", {"x": draw(ROWS, HEADS, D)}),
        ("without max_seqlen", {"x": draw(7, 3, D), "cu_seqlens": torch.tensor([0, 7])}),
        (r"cos has shape \(10, 7\)", {"cos": angles(14)}),
        (r"sin \(10, 3\)", {"sin": angles(6)}),
        ("positions up to 10, and cos and sin have 10 rows", {"seqlen_offsets": 4}),
    ],
    ids=["rows", "lengths", "columns", "sin", "positions"],
)
def test_angles_that_do_not_fit_are_refused(message: str, arguments: dict[str, Any]) -> None:
    given = {"x": draw(2, ROWS, HEADS, D), "cos": angles(8), "sin": angles(8)} | arguments
    with pytest.raises(UnsupportedError, match=message):
        apply_rotary(**given)


def test_shapes_that_are_refused() -> None:
    cos = sin = angles(8)
    with pytest.raises(UnsupportedError, match=r"num_heads_q is None; allowed are \(batch, seq, 3"):
        apply_rotary_emb_qkv_(draw(2, ROWS, 5, D), cos, sin)
    with pytest.raises(UnsupportedError, match=r"kv has shape \(2, 7, 3, 12\)"):
        apply_rotary_emb_kv_(draw(2, ROWS, 3, D), cos, sin)
    with pytest.raises(UnsupportedError, match="pass max_seqlen"):
        RotaryEmbedding(8)(draw(2, ROWS, 3, HEADS, D), seqlen_offset=torch.tensor([0, 1]))
