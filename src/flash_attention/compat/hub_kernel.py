# SPDX-License-Identifier: Apache-2.0
"""This package as a kernel repository of Hugging Face, which `kernels` and transformers load.

    from flash_attention.compat.hub_kernel import offer
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation=offer("folder"))

transformers calls the functions below. They have those parameters of flash-attn that it passes, and
`s_aux`, the sinks of models such as gpt-oss.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from torch import Tensor

from flash_attention.call.call import Keywords, Window
from flash_attention.call.checks import check_dense
from flash_attention.compat.flash_attn import NO_WINDOW, attend, options_of, packed_options
from flash_attention.compat.forward_only import of_a_cache
from flash_attention.compat.kv_cache import Cache
from flash_attention.errors import UnsupportedError
from flash_attention.files import FilePath, write_whole

__all__ = [
    "REPOSITORY",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "offer",
    "save_repository",
]

REPOSITORY = "flash-attention/jit"
"""The name under which `offer` offers the repository."""
OVERRIDES = "LOCAL_KERNELS"  # an environment variable of `kernels`: name=folder:name=folder
FUNCTIONS = ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache")
MODULE = f'''"""Attention, computed by the package flash-attention-jit."""

from {__name__} import {", ".join(FUNCTIONS)}

__all__ = {list(FUNCTIONS)}
'''


def offer(folder: FilePath, name: str = REPOSITORY) -> str:
    """Save the repository in a folder, and have `kernels` find it under a name, which is returned.

    The name is organisation/repository, for `attn_implementation`. It goes with the folder into the
    environment variable LOCAL_KERNELS, which `kernels` reads, so that nothing is downloaded.
    """
    if name.count("/") != 1 or not all(name.split("/")) or set(name) & set(":=@"):
        raise UnsupportedError(f"name is {name!r}; pass organisation/repository")
    if ":" in str(Path(folder).resolve()):
        raise UnsupportedError(
            f"folder is {str(folder)!r}, and a colon ends a name in {OVERRIDES}; pass another"
        )
    saved = save_repository(folder)
    others = [o for o in os.environ.get(OVERRIDES, "").split(":") if o and o.split("=")[0] != name]
    os.environ[OVERRIDES] = ":".join((*others, f"{name}={saved}"))
    return name


def save_repository(folder: FilePath) -> Path:
    """Write a kernel repository, whose functions are imported from this package. Returns the
    folder, which `kernels.get_local_kernel` loads, and which can be uploaded."""
    repository = Path(folder).resolve()
    for backend in ("cpu", "cuda"):
        variant = repository / "build" / f"torch-{backend}"
        write_whole(variant / "__init__.py", MODULE)
        metadata = {
            "id": f"flash_attention_jit_{backend}",
            "name": "flash-attention-jit",
            "version": 1,
            "license": "Apache-2.0",
            "python-depends": [],
            "backend": {"type": backend},
        }
        write_whole(variant / "metadata.json", json.dumps(metadata, indent=2) + "\n")
    return repository


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = NO_WINDOW,
    softcap: float = 0.0,
    deterministic: bool = False,
    s_aux: Tensor | None = None,
) -> Tensor:
    """Compute attention of (batch, seq, heads, d) tensors."""
    options = options_of(softmax_scale, causal, window_size, softcap, dropout_p)
    return attend(q, k, v, options | _sinks(s_aux), False, deterministic)[0]


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = NO_WINDOW,
    softcap: float = 0.0,
    deterministic: bool = False,
    block_table: Tensor | None = None,
    s_aux: Tensor | None = None,
) -> Tensor:
    """Compute attention of packed sequences, (total, heads, d). With `block_table` k and v are a
    paged KV cache."""
    options = options_of(softmax_scale, causal, window_size, softcap, dropout_p)
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    options |= packed_options(k, *lengths, block_table) | _sinks(s_aux)
    return attend(q, k, v, options, False, deterministic)[0]


@of_a_cache
def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = NO_WINDOW,
    softcap: float = 0.0,
    s_aux: Tensor | None = None,
) -> Tensor:
    """Store k and v, (batch, seq_new, heads_k, d), in a KV cache, and compute attention with it.

    `flash_attention.compat.flash_attn.flash_attn_with_kvcache` describes the parameters.
    """
    check_dense("q", q)
    options = options_of(softmax_scale, causal, window_size, softcap) | _sinks(s_aux)
    cache = Cache.of(k_cache, v_cache, block_table, None, None)
    attended = cache.attended(q, k, v, cache_seqlens, None, options)
    return attend(*attended, options, False)[0]


def _sinks(s_aux: Tensor | None) -> Keywords:
    return {} if s_aux is None else {"sinks": s_aux.float()}
