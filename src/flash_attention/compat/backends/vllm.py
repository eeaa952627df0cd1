# SPDX-License-Identifier: Apache-2.0
"""vLLM's attention backend, with the attention of a step computed by this package.

vLLM imports this module by the name that `register_vllm` of plug_ins.py gives. Its own backend is
the base: it allocates and fills the KV cache, builds the metadata, and computes the steps that
`elsewhere` names.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadataBuilder,
)

from flash_attention.call.results import E4M3
from flash_attention.compat.vllm import flash_attn_varlen_func

__all__ = ["JitAttentionBackend", "JitAttentionImpl", "JitMetadataBuilder", "fell_back"]

fell_back: Counter[str] = Counter()
"""How many steps of a layer vLLM's own kernels computed, by reason."""

ENCODERS = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)


def elsewhere(impl: Any, metadata: Any, *scales: Tensor | None) -> str | None:
    """Say why vLLM's own kernels compute a step, if so."""
    if any(scale is not None for scale in scales):
        return "outputs are quantised"
    if impl.attn_type in ENCODERS:
        return "an encoder has no KV cache"
    if impl.alibi_slopes is not None:
        return "biases of ALiBi are left to vLLM"
    if getattr(impl, "dcp_world_size", 1) > 1:
        return "the keys of a sequence are on several GPUs"
    if isinstance(metadata.causal, Tensor):
        return "only some sequences are causal"
    if getattr(metadata, "use_cascade", False):
        return "sequences share a prefix"
    for name in ("mm_prefix_query_range_tensor", "rswa_prefix_lens"):
        if getattr(metadata, name, None) is not None:
            return "a mask is a function of cute-dsl"
    return None


class JitAttentionImpl(FlashAttentionImpl):  # type: ignore[misc]
    """The attention of a layer."""

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Compute the step that the metadata describe into `output`."""
        if attn_metadata is None:  # vLLM measures how much memory a step takes
            return output.fill_(0)
        scales = (output_scale, output_block_scale)
        if why := elsewhere(self, attn_metadata, *scales):
            fell_back[why] += 1
            given = (layer, query, key, value, kv_cache, attn_metadata, output, *scales)
            found: Tensor = super().forward(*given)
            return found
        k, v = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
        if self.kv_cache_dtype.startswith("fp8"):
            k, v = k.view(E4M3), v.view(E4M3)
        rows, starts = attn_metadata.num_actual_tokens, attn_metadata.query_start_loc
        of_heads = (len(starts) - 1, self.num_kv_heads)
        window = self.sliding_window
        if not attn_metadata.causal and window[0] >= 0:
            window = (window[0], window[0])
        flash_attn_varlen_func(
            *(query[:rows], k, v, attn_metadata.max_query_len, starts, attn_metadata.max_seq_len),
            seqused_k=attn_metadata.seq_lens,
            softmax_scale=self.scale,
            causal=attn_metadata.causal,
            window_size=list(window),
            softcap=self.logits_soft_cap,
            block_table=attn_metadata.block_table,
            out=output[:rows],
            q_descale=layer._q_scale.expand(of_heads),
            k_descale=layer._k_scale.expand(of_heads),
            v_descale=layer._v_scale.expand(of_heads),
            num_splits=attn_metadata.max_num_splits,
            s_aux=self.sinks,
        )
        return output


class JitMetadataBuilder(FlashAttentionMetadataBuilder):  # type: ignore[misc]
    """The metadata of steps, which need no schedule of tiles made before them."""

    _cudagraph_support = AttentionCGSupport.ALWAYS

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.aot_schedule = False


class JitAttentionBackend(FlashAttentionBackend):  # type: ignore[misc]
    """The backend, which vLLM calls CUSTOM."""

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[JitAttentionImpl]:
        return JitAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[JitMetadataBuilder]:
        return JitMetadataBuilder

    @classmethod
    def supports_sink(cls) -> bool:
        return True
