# SPDX-License-Identifier: Apache-2.0
"""What comes with torch: the backends of its SDPA, and its FlashAttention-2 for the rest."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.timing import Contender


def sdpa(backend: SDPBackend, name: str, case: Case) -> Contender:
    """torch's SDPA with one of its backends: no window, one length, masks from the first key."""
    check_sdpa(case)
    point = case.point
    queries, keys, values = (tensor.transpose(1, 2) for tensor in (case.q, case.k, case.v))
    shared = point.kv_heads != point.heads

    def run() -> Tensor:
        with sdpa_kernel(backend):
            out = scaled_dot_product_attention(
                queries, keys, values, is_causal=point.causal, enable_gqa=shared
            )
        return out.transpose(1, 2)

    return Contender(name, run)


def flash_attention_2(name: str, case: Case) -> Contender:
    """SDPA's flash backend, and for windows and packed entries the operator below it."""
    point = case.point
    if not point.window and not point.lengths:
        return sdpa(SDPBackend.FLASH_ATTENTION, name, case)
    needs_cuda(case)
    left, right = case.window or (None, None)
    longest_q, longest_k = point.queries, point.seq_len

    def run() -> Tensor:
        out: Tensor = torch.ops.aten._flash_attention_forward(
            *(case.q, case.k, case.v, case.starts, case.starts, longest_q, longest_k),
            *(0.0, point.causal, False),
            window_size_left=left,
            window_size_right=right,
        )[0]
        return out

    return Contender(name, run)


def check_sdpa(case: Case) -> None:
    """Raise UnsupportedError for what torch's SDPA does not take."""
    needs_cuda(case)
    point = case.point
    if point.window or point.lengths:
        what = "window" if point.window else "packed entries"
        raise UnsupportedError(f"torch's SDPA takes no {what}")
    if point.causal and point.chunk:
        raise UnsupportedError(
            f"torch's causal mask starts at the first key, ours ends at the last: with"
            f" {point.queries} queries and {point.seq_len} keys they differ"
        )


def needs_cuda(case: Case) -> None:
    if not case.q.is_cuda:
        raise UnsupportedError(f"needs CUDA tensors, q is on {case.q.device}")
