# SPDX-License-Identifier: Apache-2.0
"""A step of SGLang: two sequences of one query with pages of its KV cache. The server computes
every step so with python -m sglang.launch_server --model-path MODEL --attention-backend fa_jit"""

import torch

from flash_attention import compat
from flash_attention.compat.sglang import flash_attn_with_kvcache

device = "cuda" if torch.cuda.is_available() else "cpu"
k, v = torch.randn(2, 8, 16, 2, 64, dtype=torch.bfloat16, device=device)  # 8 pages of 16 keys
q = torch.randn(2, 4, 64, dtype=torch.bfloat16, device=device)
starts = torch.tensor([0, 1, 2], dtype=torch.int32, device=device)
used = torch.tensor([20, 37], dtype=torch.int32, device=device)
table = torch.tensor([[4, 1, 0], [7, 2, 5]], dtype=torch.int32, device=device)
out = torch.empty_like(q)
flash_attn_with_kvcache(
    *(q, k, v), page_table=table, cache_seqlens=used, cu_seqlens_q=starts, max_seqlen_q=1, out=out
)
print(*compat.calls.items(), tuple(out.shape))  # how often attention was computed here
