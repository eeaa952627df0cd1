# SPDX-License-Identifier: Apache-2.0
"""Decoding as a CUDA graph: the step is captured once and replayed while the cache grows.

Run it with `python examples/cuda_graph_decoding.py`. The kernels read the lengths on the GPU, so
that a replay sees those of its own step. Without a GPU the same step runs as it is, on the CPU.
"""

import torch

import flash_attention

device = "cuda" if torch.cuda.is_available() else "cpu"
batch, room, heads, heads_k, d, steps = 4, 512, 8, 2, 64, 6
torch.manual_seed(0)
k_cache, v_cache = torch.randn(2, batch, room, heads_k, d, dtype=torch.bfloat16, device=device)
lengths = torch.tensor([300, 17, 200, 5], dtype=torch.int32, device=device)
sequences = torch.arange(batch, device=device)

# What a replay reads and writes stays where it is: new values are copied into these tensors.
q = torch.zeros(batch, 1, heads, d, dtype=torch.bfloat16, device=device)
k_new, v_new = torch.zeros(2, batch, heads_k, d, dtype=torch.bfloat16, device=device)
out = torch.empty_like(q)


def step() -> None:
    """Store a key and a value of every sequence, and attend to all keys so far."""
    k_cache[sequences, lengths.long()], v_cache[sequences, lengths.long()] = k_new, v_new
    lengths.add_(1)
    flash_attention.attention(q, k_cache, v_cache, seqused_k=lengths, causal=True, out=out)


replay = step
if device == "cuda":
    kept = [tensor.clone() for tensor in (lengths, k_cache, v_cache)]
    step()  # the first call compiles its kernel, which no capture may do
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for tensor, before in zip((lengths, k_cache, v_cache), kept, strict=True):
        tensor.copy_(before)
    replay = graph.replay

for _ in range(steps):
    for tensor in (q, k_new, v_new):
        tensor.normal_()
    replay()
print(f"{steps} tokens of {batch} sequences on {device}: {lengths.tolist()} keys")

for index, length in enumerate(lengths.tolist()):
    keys, values = (cache[index : index + 1, :length] for cache in (k_cache, v_cache))
    alone = flash_attention.attention(q[index : index + 1], keys, values, causal=True)
    torch.testing.assert_close(out[index : index + 1], alone, atol=1e-2, rtol=1e-2)
print("the last step agrees with attention over each sequence alone")
