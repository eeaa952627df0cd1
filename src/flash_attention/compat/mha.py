# SPDX-License-Identifier: Apache-2.0
"""The attention of flash-attn's flash_attn.modules.mha: layers without weights of their own.

Its other classes have projections, fused kernels and parallel layers. Importing them raises an
ImportError that says which package has them.
"""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor, nn

from flash_attention.call.call import Window
from flash_attention.compat.flash_attn import (
    NO_WINDOW,
    Result,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from flash_attention.errors import UnsupportedError

__all__ = ["FlashCrossAttention", "FlashSelfAttention"]

ELSEWHERE = ("MHA", "ParallelMHA", "SelfAttention", "CrossAttention", "LinearResidual")
"""The classes that only flash-attn has."""


class _Attention(nn.Module):
    """Attention with the options of all calls. Dropout is for training."""

    alibi_slopes: Tensor | None

    def __init__(
        self,
        causal: bool = False,
        softmax_scale: float | None = None,
        attention_dropout: float = 0.0,
        window_size: Window = NO_WINDOW,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.softmax_scale = softmax_scale
        self.drop = nn.Dropout(attention_dropout)
        self.register_buffer("alibi_slopes", alibi_slopes, persistent=False)
        self.window_size = window_size
        self.deterministic = deterministic

    def _options(self, causal: bool | None) -> dict[str, object]:
        return {
            "dropout_p": self.drop.p if self.training else 0.0,
            "softmax_scale": self.softmax_scale,
            "causal": self.causal if causal is None else causal,
            "alibi_slopes": self.alibi_slopes,
            "window_size": self.window_size,
            "deterministic": self.deterministic,
        }


class FlashSelfAttention(_Attention):
    """Attention of q, k and v in one tensor."""

    def forward(
        self,
        qkv: Tensor,
        causal: bool | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
    ) -> Result:
        """Compute attention of (batch, seq, 3, heads, d), or with `cu_seqlens` and `max_seqlen` of
        packed sequences, (total, 3, heads, d). `causal` replaces that of the layer."""
        options = self._options(causal)
        if cu_seqlens is None:
            return flash_attn_qkvpacked_func(qkv, **options)
        if max_seqlen is None:
            raise UnsupportedError("cu_seqlens is given without max_seqlen; pass both")
        return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, **options)


class FlashCrossAttention(_Attention):
    """Attention of q, and of k and v in one tensor."""

    def forward(
        self,
        q: Tensor,
        kv: Tensor,
        causal: bool | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        cu_seqlens_k: Tensor | None = None,
        max_seqlen_k: int | None = None,
    ) -> Result:
        """Compute attention of (batch, seq_q, heads, d) and (batch, seq_k, 2, heads_k, d), or with
        all of the lengths of packed sequences. `causal` replaces that of the layer."""
        options = self._options(causal)
        if cu_seqlens is None:
            return flash_attn_kvpacked_func(q, kv, **options)
        lengths = (cu_seqlens, cu_seqlens_k, max_seqlen, max_seqlen_k)
        if any(length is None for length in lengths):
            raise UnsupportedError(
                "cu_seqlens is given, and cu_seqlens_k, max_seqlen or max_seqlen_k is not; pass all"
            )
        return flash_attn_varlen_kvpacked_func(q, kv, *lengths, **options)


def __getattr__(name: str) -> NoReturn:
    if name in ELSEWHERE:
        raise ImportError(
            f"flash_attn.modules.mha.{name} is in the package flash-attn, and flash_attention"
            f".compat.install() provides only {' and '.join(__all__)} of that module; install"
            " flash-attn, and call flash_attention.compat.install(replace=True), which keeps it"
        )
    raise AttributeError(f"module has no attribute {name!r}")
