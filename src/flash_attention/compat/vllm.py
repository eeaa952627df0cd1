# SPDX-License-Identifier: Apache-2.0
"""The functions of vLLM's fork of flash-attn, which its backend calls, and others import.

    vllm serve MODEL --attention-backend CUSTOM

The backend that this option selects calls them (docs/switch.md). They have the names and parameters
of vllm.vllm_flash_attn. `fa_version` and `scheduler_metadata` have no
effect: there is one implementation, and kernels schedule their tiles themselves. `num_splits` 1
does not split keys; of other numbers this package makes as many splits as fill the GPU.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flash_attention.compat.flash_attn import refuse
from flash_attention.compat.serving import Options, Step, compute_step, get_scheduler_metadata
from flash_attention.errors import UnsupportedError

__all__ = [
    "FA2_AVAILABLE",
    "FA3_AVAILABLE",
    "fa_version_unsupported_reason",
    "flash_attn_varlen_func",
    "get_scheduler_metadata",
    "is_fa_version_supported",
]

FA2_AVAILABLE = FA3_AVAILABLE = True
VERSIONS = (2, 3)
INSTEAD = {
    "q_v": "there is no second product of scores here; pass torch.cat((q, q_v), -1) for q and"
    " torch.cat((k, v), -1) for k, which give the same scores",
    "return_attn_probs": "probabilities are never stored here; pass return_softmax_lse",
    "output_scale": "outputs are not quantised here; quantise out",
    "cp_tot_seqused_k": "context parallelism merges outputs by their softmax_lse here; leave it out"
    " and call flash_attention.merge",
    "mask_mod": "functions of cute-dsl are not compiled here; call flash_attention.attention with"
    " mask",
    "block_sparse_tensors": "blocks are found from the mask here; leave it out",
    "aux_tensors": "functions of cute-dsl are not compiled here; call flash_attention.attention",
    "aux_tensor_leading_dims": "functions of cute-dsl are not compiled here; leave it out",
    "dynamic_causal": "causal is the same for all sequences of a call here; make two calls",
    "gather_kv_indices": "keys are pages or packed here; pass block_table",
    "gather_kv_valid_length": "keys are pages or packed here; pass block_table",
}
"""Why a parameter is not supported, and what to do instead."""


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    max_seqlen_q: int,
    cu_seqlens_q: Tensor,
    max_seqlen_k: int,
    cu_seqlens_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    q_v: Tensor | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: list[int] | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    return_softmax_lse: bool = False,
    out: Tensor | None = None,
    scheduler_metadata: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    num_splits: int = 0,
    output_scale: Tensor | None = None,
    fa_version: int = 3,
    s_aux: Tensor | None = None,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_tot_seqused_k: Tensor | None = None,
    **of_version_4: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention of packed queries, (total, heads, d), with packed keys, or with pages if
    `block_table` and `seqused_k` are given. `s_aux` are the sinks.

    Returns out, or with `return_softmax_lse` (out, softmax_lse), where softmax_lse is (heads,
    total).
    """
    refused = {"q_v": q_v, "return_attn_probs": return_attn_probs, "output_scale": output_scale}
    refused |= {"cp_tot_seqused_k": cp_tot_seqused_k}
    _check(dropout_p, cp_world_size, refused | of_version_4)
    step = Step(cu_seqlens_q, max_seqlen_q, cu_seqlens_k, max_seqlen_k, seqused_k, block_table)
    descales = (q_descale, k_descale, v_descale)
    given = (softmax_scale, causal, window_size, softcap, s_aux, alibi_slopes, descales, num_splits)
    found, lse = compute_step(q, k, v, step, Options(*given), out, return_softmax_lse)
    return found if lse is None else (found, lse)


def is_fa_version_supported(fa_version: int) -> bool:
    """Whether functions of this version are here."""
    return fa_version in VERSIONS


def fa_version_unsupported_reason(fa_version: int) -> str | None:
    """Say why functions of a version are not here, if so."""
    if is_fa_version_supported(fa_version):
        return None
    return f"flash_attention has the functions of versions 2 and 3, not of {fa_version}"


def _check(dropout_p: float, cp_world_size: int, given: dict[str, Any]) -> None:
    if unknown := sorted(given.keys() - INSTEAD.keys()):
        raise TypeError(
            f"flash_attn_varlen_func() got an unexpected keyword argument {unknown[0]!r}"
        )
    if dropout_p:
        raise UnsupportedError(
            f"dropout_p is {dropout_p}, and steps of a serving engine have none; pass 0, or call"
            " flash_attention.compat.flash_attn.flash_attn_varlen_func"
        )
    if cp_world_size != 1:
        raise UnsupportedError(f"cp_world_size is {cp_world_size}; {INSTEAD['cp_tot_seqused_k']}")
    refuse(INSTEAD, given)
