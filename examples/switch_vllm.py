# SPDX-License-Identifier: Apache-2.0
"""A step of vLLM: three sequences with pages of its KV cache. The server computes every step so
with vllm serve MODEL --attention-backend CUSTOM"""

import torch

from flash_attention import compat
from flash_attention.compat.vllm import flash_attn_varlen_func

device = "cuda" if torch.cuda.is_available() else "cpu"
cache = torch.randn(8, 2, 16, 2 * 64, dtype=torch.bfloat16, device=device)
k, v = cache.transpose(1, 2).split(64, dim=-1)  # (pages, page, heads_k, d)
q = torch.randn(9, 4, 64, dtype=torch.bfloat16, device=device)
starts = torch.tensor([0, 3, 4, 9], dtype=torch.int32, device=device)
used = torch.tensor([20, 37, 5], dtype=torch.int32, device=device)
table = torch.tensor([[4, 1, 0], [7, 2, 5], [3, 0, 0]], dtype=torch.int32, device=device)
out = torch.empty_like(q)
flash_attn_varlen_func(
    *(q, k, v, 5, starts, 37), seqused_k=used, block_table=table, causal=True, out=out
)
print(*compat.calls.items(), tuple(out.shape))  # how often attention was computed here
