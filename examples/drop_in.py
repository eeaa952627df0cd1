# SPDX-License-Identifier: Apache-2.0
"""The drop-in: a program written for flash-attn runs as it is.

Run it with `python examples/drop_in.py`, or any program of your own that imports flash-attn with
`python -m flash_attention.compat program.py`, which needs no change at all.
"""

import torch

from flash_attention import compat

compat.install()  # before the first import of flash_attn

from flash_attn import flash_attn_func, flash_attn_varlen_func  # noqa: E402
from flash_attn.bert_padding import pad_input, unpad_input  # noqa: E402

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
shape = (2, 128, 4, 64)
q, k, v = (
    torch.randn(shape, dtype=torch.bfloat16, device=device, requires_grad=True) for _ in "qkv"
)
out = flash_attn_func(q, k, v, causal=True, window_size=(63, 0))
out.sum().backward()
gradients = all(tensor.grad is not None and bool(tensor.grad.any()) for tensor in (q, k, v))
print(f"flash_attn_func: {tuple(out.shape)}, gradients of q, k and v: {gradients}")

# Padding, as flash-attn's users take it out: only the rows of real tokens are computed.
real = torch.arange(128, device=device) < torch.tensor([[128], [50]], device=device)
packed, indices, starts, longest, *_ = unpad_input(q.flatten(2).detach(), real)
rows = packed.unflatten(-1, (4, 64))
ran = flash_attn_varlen_func(rows, rows, rows, starts, starts, longest, longest, causal=True)
padded = pad_input(ran.flatten(1), indices, 2, 128).unflatten(-1, (4, 64))
alone = flash_attn_func(*(q[1:, :50].detach() for _ in "qkv"), causal=True)
torch.testing.assert_close(padded[1:, :50], alone, atol=1e-2, rtol=1e-2)
print(f"{int(starts[-1])} of {real.numel()} rows were computed, as each sequence alone")
print(*compat.calls.items())  # how often attention was computed here
