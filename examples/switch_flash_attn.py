# SPDX-License-Identifier: Apache-2.0
"""Layers of flash-attn, as models that were written for it import them."""

import torch

from flash_attention import compat

compat.install()  # before the first import of flash_attn
from flash_attn.layers.rotary import RotaryEmbedding  # noqa: E402
from flash_attn.modules.mha import FlashSelfAttention  # noqa: E402

device = "cuda" if torch.cuda.is_available() else "cpu"
qkv = torch.randn(2, 64, 3, 4, 64, dtype=torch.bfloat16, device=device)
rotated = RotaryEmbedding(64, device=device)(qkv).requires_grad_()
out = FlashSelfAttention(causal=True)(rotated)
out.sum().backward()
print(*compat.calls.items(), tuple(out.shape))  # how often attention was computed here
compat.uninstall()
