# SPDX-License-Identifier: Apache-2.0
"""One prompt for many sequences: its keys are read once, and merged with what each has of its own.

Run it with `python examples/shared_prefix.py`. The queries of all sequences are one long sequence
of queries for the prompt. `merge` then combines both results by their log-sum-exps.
"""

import torch

from flash_attention import attention, merge

device = "cuda" if torch.cuda.is_available() else "cpu"
batch, heads, heads_k, d, prompt, own = 16, 8, 2, 64, 700, 40
torch.manual_seed(0)
q = torch.randn(batch, 1, heads, d, dtype=torch.bfloat16, device=device)
k_prompt, v_prompt = torch.randn(2, prompt, heads_k, d, dtype=torch.bfloat16, device=device)
k, v = torch.randn(2, batch, own, heads_k, d, dtype=torch.bfloat16, device=device)
lengths = torch.randint(1, own + 1, (batch,), dtype=torch.int32, device=device)

rows = q.flatten(0, 1)[None]  # (1, batch, heads, d)
o1, lse1 = attention(rows, k_prompt[None], v_prompt[None], return_lse=True)
o2, lse2 = attention(q, k, v, seqused_k=lengths, causal=True, return_lse=True)
lse1 = lse1.view(heads, batch, 1).transpose(0, 1)  # (batch, heads, 1), as lse2
out, lse = merge(o1.view_as(q), lse1, o2, lse2)
print(f"{batch} sequences share {prompt} keys and have {lengths.min()} to {lengths.max()} more")

# The same with the prompt repeated before the keys of each sequence.
for index, length in enumerate(lengths.tolist()):
    keys, values = (
        torch.cat((shared, mine[index, :length]))[None]
        for shared, mine in ((k_prompt, k), (v_prompt, v))
    )
    alone, its_lse = attention(q[index : index + 1], keys, values, return_lse=True)
    torch.testing.assert_close(out[index : index + 1], alone, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(lse[index : index + 1], its_lse, atol=1e-3, rtol=1e-3)
print("every sequence agrees with attention over its prompt and its own keys")
