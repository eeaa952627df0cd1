# SPDX-License-Identifier: Apache-2.0
"""What the entry points of this package call when vLLM or SGLang starts."""

from __future__ import annotations

from typing import Any

SGLANG = "fa_jit"
"""The name of the backend in SGLang."""


def register_vllm() -> None:
    """Register the backend as vLLM's CUSTOM."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(
        AttentionBackendEnum.CUSTOM, "flash_attention.compat.backends.vllm.JitAttentionBackend"
    )


def register_sglang() -> None:
    """Register the backend with SGLang, and add it to the choices of its option."""
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.server_args import ATTENTION_BACKEND_CHOICES

    if SGLANG not in ATTENTION_BACKEND_CHOICES:
        ATTENTION_BACKEND_CHOICES.append(SGLANG)

    def create(runner: Any) -> Any:
        from flash_attention.compat.backends.sglang import JitAttentionBackend

        return JitAttentionBackend(runner)

    register_attention_backend(SGLANG)(create)
