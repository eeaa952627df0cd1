# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3 as vLLM builds it: a forward operator that also takes sinks.

--fa3 or $FLASH_ATTENTION_FA3 names its library, _vllm_fa3_C.abi3.so, plain or packed by xz. It uses
the CUDA runtime of torch.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench.peers.fa3 import FA3_CHOOSES, unpacked

LIBRARY = "_vllm_fa3_C.abi3.so"


def load_vllm_fa3(path: Path) -> Any:
    """Load the forward operator."""
    if path.name.removesuffix(".xz") != LIBRARY:
        raise UnsupportedError(
            f"{path} is not {LIBRARY}, plain or packed by xz: pass the library of vLLM's build,"
            " whose operator takes sinks and pages"
        )
    _load(path)
    return torch.ops._vllm_fa3_C.fwd


@cache
def _load(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:  # the mapping outlives the file
        torch.ops.load_library(str(unpacked(path, Path(folder))))


def vllm_fa3_arguments(call: Call, longest_k: int) -> list[Any]:
    """Return the arguments of the operator for a call with packed queries and pages, in its order.
    `longest_k` is the number of keys of the longest sequence."""
    q, k, v, out, sinks = call[:5]
    batch, heads_k = len(call.cu_seqlens_q) - 1 if call.cu_seqlens_q is not None else 0, k.shape[2]
    descales = (_of_heads(factor, batch, heads_k) for factor in call[10:13])
    left, right = call.window or (-1, -1)
    return [
        *(q, k, v),
        *(None, None, None, out),  # k_new, v_new, q_v
        *(call.cu_seqlens_q, None, None),  # cu_seqlens of q, k and k_new
        *(None, call.seqused_k),  # seqused_q
        *(call.max_seqlen_q, longest_k, call.block_table),
        *(None, None),  # kv_batch_idx, leftpad_k
        *(None, None, None),  # rotary
        *descales,
        *(q.shape[-1] ** -0.5, call.causal, left, right),
        *(call.softcap, True, None),  # is_rotary_interleaved, scheduler_metadata
        *(FA3_CHOOSES, None, 0),  # num_splits, pack_gqa, sm_margin
        None if sinks is None else sinks.bfloat16(),
        *(1, 0, None),  # context parallelism
    ]


def _of_heads(factor: Tensor | None, batch: int, heads_k: int) -> Tensor | None:
    return None if factor is None else factor.expand(batch, heads_k)
