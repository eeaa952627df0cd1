# SPDX-License-Identifier: Apache-2.0
"""The passes that Transformer Engine and Megatron import, computed by this package."""

import torch

from flash_attention import compat

compat.install()  # before transformer_engine or megatron is imported
from flash_attn_interface import _flash_attn_backward, _flash_attn_forward  # noqa: E402

device = "cuda" if torch.cuda.is_available() else "cpu"
q, k, v, dout = torch.randn(4, 2, 64, 4, 64, dtype=torch.bfloat16, device=device).unbind()
out, lse, *_ = _flash_attn_forward(q, k, v, softmax_scale=0.125, causal=True)
dq, dk, dv = (torch.empty_like(t) for t in (q, k, v))
_flash_attn_backward(dout, q, k, v, out, lse, dq=dq, dk=dk, dv=dv, is_causal=True)
print(*compat.calls.items(), bool(dq.any()))  # how often attention was computed here
compat.uninstall()
