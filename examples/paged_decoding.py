# SPDX-License-Identifier: Apache-2.0
"""Decoding with a paged KV cache: one token at a time, for sequences of different lengths.

Run it with `python examples/paged_decoding.py`. A page holds the keys and values of `page_size`
tokens of one sequence; `block_table` says which pages belong to which sequence, in order.
"""

import torch

import flash_attention

device = "cuda" if torch.cuda.is_available() else "cpu"
page_size, heads, heads_k, d, steps = 64, 8, 2, 64, 5
lengths = torch.tensor([100, 37, 190], dtype=torch.int32, device=device)  # tokens so far
batch, pages_each = len(lengths), 4

torch.manual_seed(0)
shape = (batch * pages_each, page_size, heads_k, d)
k_cache, v_cache = torch.randn(2, *shape, dtype=torch.bfloat16, device=device)
# The pages of a sequence may lie anywhere in the cache.
block_table = torch.randperm(batch * pages_each, device=device).int().view(batch, pages_each)

for step in range(steps):
    # The model makes a query, a key and a value of the newest token; here they are random.
    q = torch.randn(batch, 1, heads, d, dtype=torch.bfloat16, device=device)
    k_new, v_new = torch.randn(2, batch, heads_k, d, dtype=torch.bfloat16, device=device)
    page = block_table[torch.arange(batch, device=device), lengths // page_size].long()
    row = (lengths % page_size).long()
    k_cache[page, row], v_cache[page, row] = k_new, v_new
    lengths += 1

    out = flash_attention.attention(
        q, k_cache, v_cache, block_table=block_table, seqused_k=lengths, causal=True
    )
    print(f"step {step}: {tuple(out.shape)} for {lengths.tolist()} keys")

# The same without pages: gather the keys of each sequence and attend to them alone.
for index, length in enumerate(lengths.tolist()):
    k, v = (c[block_table[index].long()].flatten(0, 1)[None, :length] for c in (k_cache, v_cache))
    alone = flash_attention.attention(q[index : index + 1], k, v, causal=True)
    torch.testing.assert_close(out[index : index + 1], alone, atol=1e-2, rtol=1e-2)
print("every sequence agrees with its own keys alone")
