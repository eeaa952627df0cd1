# SPDX-License-Identifier: Apache-2.0
"""torch's varlen_attn, computed by this package."""

import torch
from torch.nn.attention import activate_flash_attention_impl, restore_flash_attention_impl
from torch.nn.attention.varlen import varlen_attn

from flash_attention.compat.torch import calls, register

device = "cuda" if torch.cuda.is_available() else "cpu"
q, k, v = torch.randn(3, 24, 4, 64, dtype=torch.bfloat16, device=device).unbind()
starts = torch.tensor([0, 7, 24], dtype=torch.int32, device=device)
activate_flash_attention_impl(register())
out = varlen_attn(q.requires_grad_(), k, v, starts, starts, 17, 17, window_size=(-1, 0))
torch.autograd.backward(out, torch.ones_like(q))
print(*calls.items())  # which operators of torch were computed here, and how often
restore_flash_attention_impl()
