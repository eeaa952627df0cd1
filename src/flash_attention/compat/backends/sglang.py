# SPDX-License-Identifier: Apache-2.0
"""SGLang's FlashAttention backend, with its attention computed by this package.

The functions that its methods call are names of its module. A copy of each method finds the
functions of `flash_attention.compat.sglang` under these names instead, so that SGLang's own backend
beside it is not changed.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from sglang.srt.layers.attention import flashattention_backend as theirs

from flash_attention.compat import sglang as ours

__all__ = ["JitAttentionBackend"]

NAMES: dict[str, Any] = {
    **vars(theirs),
    "flash_attn_varlen_func": ours.flash_attn_varlen_func,
    "flash_attn_with_kvcache": ours.flash_attn_with_kvcache,
}
"""What the methods find."""


def rebound(function: FunctionType) -> FunctionType:
    """Copy a function, which then calls the functions of this package."""
    own = (function.__name__, function.__defaults__, function.__closure__)
    copied = FunctionType(function.__code__, NAMES, *own)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


class JitAttentionBackend(theirs.FlashAttentionBackend):  # type: ignore[misc]
    """The backend, which SGLang calls fa_jit."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._get_scheduler_metadata = None  # kernels schedule their tiles themselves
        self.flash_attn_varlen_func = ours.flash_attn_varlen_func
        self.flash_attn_with_kvcache = ours.flash_attn_with_kvcache


for _name, _method in vars(theirs.FlashAttentionBackend).items():
    if isinstance(_method, FunctionType) and _name != "__init__":
        setattr(JitAttentionBackend, _name, rebound(_method))
