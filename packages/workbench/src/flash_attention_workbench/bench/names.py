# SPDX-License-Identifier: Apache-2.0
"""The names that options take and the variables that stand for them: what help can say alone."""

from __future__ import annotations

GRID_NAMES = (
    *("fa3", "seed", "prefill_gqa", "varlen", "decode", "window"),
    *("backward", "backward_seed", "backward_gqa", "backward_varlen", "training"),
)

PEERS = ("fa3", "cudnn", "fa2", "flex", "efficient", "sdpa_math")
DEFAULT_PEERS = PEERS[:3]

FA3_VARIABLE = "FLASH_ATTENTION_FA3"
"""The path of FlashAttention-3's library, for `bench`; the option `--fa3` goes before it. It is
upstream's build, flash_attn_3_C.so, with libcudart.so.12 beside it."""

EXAMPLE = "batch=4 heads=32 heads_k=8 seq=8192 d=128 causal"
