# SPDX-License-Identifier: Apache-2.0
"""The functions and the module of flash-attn's layers.rotary and ops.triton.rotary.

They consist of operations of torch, compute in float32 and round once. `interleaved` rotates pairs
of neighbouring columns, otherwise column i is paired with column i + rotary_dim / 2. Only the first
rotary_dim columns are rotated. `seqlen_offsets` is the position of the first row of all sequences,
or int32 (batch,) of each. A row whose position has no angles is not rotated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from flash_attention.call.checks import check_dense
from flash_attention.errors import UnsupportedError, quoted

__all__ = [
    "RotaryEmbedding",
    "apply_rotary",
    "apply_rotary_emb",
    "apply_rotary_emb_kv_",
    "apply_rotary_emb_qkv_",
    "apply_rotary_emb_torch",
    "rotate_half",
]


def apply_rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> Tensor:
    """Rotate x, (batch, seq, heads, d), or packed sequences (total, heads, d) with `cu_seqlens` and
    `max_seqlen`, by the angles of `cos` and `sin`, (seq_ro, rotary_dim / 2).

    `conjugate` rotates back. With `inplace` the result is stored in x, without autograd.
    """
    _check(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen)
    cos, sin = _at_rows(x, cos, sin, seqlen_offsets, cu_seqlens)
    dim = 2 * cos.shape[-1]
    if conjugate:
        sin = -sin
    turned = _turned(x[..., :dim].float(), cos, sin, interleaved).to(x.dtype)
    if not inplace:
        return torch.cat((turned, x[..., dim:]), dim=-1)
    with torch.no_grad():
        x[..., :dim].copy_(turned)
    return x


def rotate_half(x: Tensor, interleaved: bool = False) -> Tensor:
    """Rotate pairs of columns by 90 degrees."""
    return _turned(x, torch.zeros_like(x[..., ::2]), torch.ones_like(x[..., ::2]), interleaved)


def apply_rotary_emb_torch(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> Tensor:
    """Rotate x, (batch, seq, heads, d), in its own precision, by `cos` and `sin` of all its rows,
    (seq, rotary_dim / 2) or (batch, seq, rotary_dim / 2)."""
    dim = 2 * cos.shape[-1]
    turned = _turned(x[..., :dim], cos[..., None, :], sin[..., None, :], interleaved)
    return torch.cat((turned, x[..., dim:]), dim=-1)


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """Compute `apply_rotary`, differentiable in x, also with `inplace`."""
    rotate = partial(
        apply_rotary,
        cos=cos,
        sin=sin,
        seqlen_offsets=seqlen_offsets,
        cu_seqlens=cu_seqlens,
        max_seqlen=max_seqlen,
        interleaved=interleaved,
    )
    return _rotated(x, inplace, ((..., rotate),))


def apply_rotary_emb_qkv_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cos_k: Tensor | None = None,
    sin_k: Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
    num_heads_q: int | None = None,
) -> Tensor:
    """Rotate q and k in place, differentiable in qkv: (batch, seq, 3, heads, d), or with
    `num_heads_q` (batch, seq, heads_q + 2 heads_k, d).

    `cos_k` and `sin_k` are the angles of k, if k has others than q.
    """
    check_dense("qkv", qkv)
    of_q: int | slice = 0
    of_k: int | slice = 1
    if qkv.ndim != 5 or qkv.shape[2] != 3:
        heads = num_heads_q if isinstance(num_heads_q, int) else 0
        heads_k = (qkv.shape[2] - heads) // 2 if qkv.ndim == 4 else 0
        if heads < 1 or heads_k < 1 or heads + 2 * heads_k != qkv.shape[2]:
            raise UnsupportedError(
                f"qkv has shape {tuple(qkv.shape)}, and num_heads_q is {quoted(num_heads_q)};"
                " allowed are (batch, seq, 3, heads, d), and (batch, seq, num_heads_q + 2 heads_k,"
                " d) with num_heads_q"
            )
        of_q, of_k = slice(heads), slice(heads, heads + heads_k)
    rotate = partial(apply_rotary, seqlen_offsets=seqlen_offsets, interleaved=interleaved)
    keys = {
        "cos": cos if cos_k is None else cos_k,
        "sin": sin if sin_k is None else sin_k,
    }
    return _rotated(
        qkv,
        True,
        (
            ((slice(None), slice(None), of_q), partial(rotate, cos=cos, sin=sin)),
            ((slice(None), slice(None), of_k), partial(rotate, **keys)),
        ),
    )


def apply_rotary_emb_kv_(
    kv: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
) -> Tensor:
    """Rotate k in place, differentiable in kv, (batch, seq, 2, heads, d)."""
    check_dense("kv", kv)
    if kv.ndim != 5 or kv.shape[2] != 2:
        raise UnsupportedError(
            f"kv has shape {tuple(kv.shape)}; allowed is (batch, seq, 2, heads, d)"
        )
    rotate = partial(
        apply_rotary, cos=cos, sin=sin, seqlen_offsets=seqlen_offsets, interleaved=interleaved
    )
    return _rotated(kv, True, (((slice(None), slice(None), 0), rotate),))


class RotaryEmbedding(nn.Module):
    """Rotary embeddings of q and k, in place.

    - `dim`: rotary_dim. Column i turns by base ** (-2 i / dim) from one position to the next.
    - `scale_base`: scale q and k as in XPos, by powers that are 1 in the middle of the sequence.
    """

    inv_freq: Tensor
    scale: Tensor | None

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.base = dim, float(base)
        self.interleaved, self.scale_base = interleaved, scale_base
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        columns = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
        scale = None if scale_base is None else (columns + 0.4 * dim) / (1.4 * dim)
        self.register_buffer("scale", scale, persistent=False)
        self._seq_len_cached = 0
        self._cos_cached: Tensor | None = None
        self._sin_cached: Tensor | None = None
        self._cos_k_cached: Tensor | None = None
        self._sin_k_cached: Tensor | None = None

    def _compute_inv_freq(self, device: torch.device | str | None = None) -> Tensor:
        columns = torch.arange(0, self.dim, 2, device=device, dtype=torch.float32)
        return 1.0 / self.base ** (columns / self.dim)

    def _update_cos_sin_cache(
        self,
        seqlen: int,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Compute the angles of `seqlen` positions, unless they are there. Models that derive from
        this class call it."""
        known = self._cos_cached
        if (
            known is not None
            and seqlen <= self._seq_len_cached
            and (known.device, known.dtype) == (device, dtype)
            and not (self.training and known.is_inference())
        ):
            return
        self._seq_len_cached = seqlen
        position = torch.arange(seqlen, device=device, dtype=torch.float32)
        lost = self.inv_freq.dtype != torch.float32  # with the model, whose weights have 16 bits
        frequency = self._compute_inv_freq(device) if lost else self.inv_freq
        angles = torch.outer(position, frequency.to(device))
        cos, sin = angles.cos(), angles.sin()
        if self.scale is None or self.scale_base is None:
            self._cos_cached, self._sin_cached = cos.to(dtype), sin.to(dtype)
            return
        power = (position - seqlen // 2) / self.scale_base
        scale = self.scale.to(position) ** power[:, None]
        self._cos_cached, self._sin_cached = (cos * scale).to(dtype), (sin * scale).to(dtype)
        self._cos_k_cached, self._sin_k_cached = (cos / scale).to(dtype), (sin / scale).to(dtype)

    def forward(
        self,
        qkv: Tensor,
        kv: Tensor | None = None,
        seqlen_offset: int | Tensor = 0,
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Rotate qkv as `apply_rotary_emb_qkv_` does. With `kv`, `qkv` is q alone, and both are
        rotated and returned. A tensor of offsets needs `max_seqlen`, how many positions there are.
        """
        if max_seqlen is not None:
            self._update_cos_sin_cache(max_seqlen, qkv.device, qkv.dtype)
        elif isinstance(seqlen_offset, int):
            self._update_cos_sin_cache(qkv.shape[1] + seqlen_offset, qkv.device, qkv.dtype)
        cos, sin = self._cos_cached, self._sin_cached
        if cos is None or sin is None:
            raise UnsupportedError(
                "seqlen_offset is a tensor, and no angles are computed yet; pass max_seqlen, the"
                " number of positions"
            )
        of_k = (self._cos_k_cached, self._sin_k_cached)
        if kv is None:
            return apply_rotary_emb_qkv_(
                *(qkv, cos, sin, *of_k, self.interleaved, seqlen_offset, num_heads_q)
            )
        q = apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        cos_k, sin_k = (t if k is None else k for t, k in zip((cos, sin), of_k, strict=True))
        return q, apply_rotary_emb_kv_(kv, cos_k, sin_k, self.interleaved, seqlen_offset)


Part = tuple[Any, Callable[..., Tensor]]  # an index into a tensor, and how to rotate what is there


class _Rotation(Function):
    """Rotate parts of a tensor, each in place, and their gradient back.

    As in flash-attn, a tensor that is rotated in place is not marked as changed, so that it may be
    one of several views.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, inplace: bool, parts: tuple[Part, ...], conjugate: bool = False
    ) -> Tensor:
        ctx.parts, ctx.conjugate = parts, conjugate
        x = x if inplace else x.clone()
        for index, rotate in parts:
            rotate(x[index], inplace=True, conjugate=conjugate)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        back = _rotated(gradients[0], False, ctx.parts, not ctx.conjugate)
        return back, None, None, None


_rotated: Callable[..., Tensor] = _Rotation.apply


def _turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate all columns of a tensor."""
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    pairs = (a * cos - b * sin, a * sin + b * cos)
    return torch.stack(pairs, dim=-1).flatten(-2) if interleaved else torch.cat(pairs, dim=-1)


def _at_rows(
    x: Tensor, cos: Tensor, sin: Tensor, offsets: int | Tensor, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the angles of all rows of x in float32, with a dimension of 1 for the heads."""
    rows = torch.arange(x.shape[-3], device=x.device)
    if cu_seqlens is not None:
        starts = cu_seqlens.to(torch.int64)
        sequence = torch.searchsorted(starts[1:], rows, right=True)
        loose = (rows < starts[0]) | (rows >= starts[-1])  # in no sequence
        sequence = sequence.clamp(max=len(starts) - 2)
        offset = offsets[sequence] if isinstance(offsets, Tensor) else offsets
        place = (rows - starts[sequence] + offset).masked_fill(loose, -1)
    else:
        place = rows + (offsets[:, None] if isinstance(offsets, Tensor) else offsets)
    known = ((place >= 0) & (place < len(cos)))[..., None]
    at = place.clamp(0, len(cos) - 1)
    cos = torch.where(known, cos[at].float(), 1.0)
    return cos[..., None, :], torch.where(known, sin[at].float(), 0.0)[..., None, :]


def _check(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    offsets: int | Tensor,
    cu_seqlens: Tensor | None,
    max_seqlen: int | None,
) -> None:
    check_dense("x", x, ("batch", "seq", "heads", "d"))
    for name, angles in (("cos", cos), ("sin", sin)):
        check_dense(name, angles, ("seq_ro", "rotary_dim / 2"))
    if x.ndim != (4 if cu_seqlens is None else 3):
        raise UnsupportedError(
            f"x has shape {tuple(x.shape)}; allowed are (batch, seq, heads, d), and with cu_seqlens"
            " (total, heads, d)"
        )
    if cos.ndim != 2 or cos.shape != sin.shape or 2 * cos.shape[1] > x.shape[-1]:
        raise UnsupportedError(
            f"cos has shape {tuple(cos.shape)}, sin {tuple(sin.shape)}; both must be (seq_ro,"
            f" rotary_dim / 2) with a rotary_dim up to {x.shape[-1]}, the columns of x"
        )
    if cu_seqlens is not None and max_seqlen is None:
        raise UnsupportedError("cu_seqlens is given without max_seqlen; pass the longest length")
    rows = x.shape[1] if max_seqlen is None or cu_seqlens is None else int(max_seqlen)
    last = rows + (offsets if isinstance(offsets, int) else 0)
    if last > len(cos):
        raise UnsupportedError(
            f"x has rows at positions up to {last - 1}, and cos and sin have {len(cos)} rows; pass"
            f" at least {last}"
        )
