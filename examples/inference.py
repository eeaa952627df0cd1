# SPDX-License-Identifier: Apache-2.0
"""Attention of a prompt: grouped heads, a causal mask, the log-sum-exp, and a check of the result.

Run it with `python examples/inference.py`. Without a GPU, torch computes on the CPU.
"""

import torch

import flash_attention

device = "cuda" if torch.cuda.is_available() else "cpu"
batch, seq, heads, heads_k, d = (4, 4096, 32, 8, 128) if device == "cuda" else (1, 256, 8, 2, 64)
torch.manual_seed(0)
q = torch.randn(batch, seq, heads, d, dtype=torch.bfloat16, device=device)
k, v = torch.randn(2, batch, seq, heads_k, d, dtype=torch.bfloat16, device=device)

out = flash_attention.attention(q, k, v, causal=True)
print(f"{tuple(out.shape)} on {device}")

# The log-sum-exp of every row merges results over different keys.
_, lse = flash_attention.attention(q, k, v, causal=True, return_lse=True)
print(f"log-sum-exp {tuple(lse.shape)}, of the first row {lse[0, 0, 0]:.4f}")

# Which kernel runs, why, and what bounds it; no GPU is needed for the answer.
print(flash_attention.explain(q, k, v, causal=True, arch=None if device == "cuda" else "sm_90"))

# How far the result is from float64, beside torch in 16 bits.
report = flash_attention.check(q, k, v, causal=True)
print(report)
assert report.ok
