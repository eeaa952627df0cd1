# SPDX-License-Identifier: Apache-2.0
"""The README's table of what each GPU computes: strict mode answers for every architecture."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.render.blocks import table, wrap
from flash_attention import UnsupportedError, attention, scores
from flash_attention.call.strict import VARIABLE

DOCUMENT = Path("README.md")
GPUS = "gpus"
COLUMNS = {
    "Ampere, Ada": ("sm_80", "sm_86", "sm_87", "sm_89"),
    "Hopper": ("sm_90",),
    "Blackwell": ("sm_100", "sm_103", "sm_120", "sm_121"),
}
RAN = {"sm_90": "on an H200"}  # where kernels have run; elsewhere they are emulated
EMULATED = "in the emulator"


def _normal(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> Tensor:
    return torch.zeros(shape).to(dtype).requires_grad_(grad)


def _trained(d: int = 64, **options: Any) -> None:
    q, k, v = (_normal(1, 16, heads, d, grad=True) for heads in (4, 2, 2))
    o: Tensor = attention(q, k, v, causal=True, **options)
    o.sum().backward()


def _packed() -> None:
    starts = torch.tensor([0, 5, 16], dtype=torch.int32)
    rows: dict[str, Any] = {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
    q = _normal(16, 2, 64, grad=True)
    o: Tensor = attention(q, q, q, max_seqlen_q=11, max_seqlen_k=11, **rows)
    o.sum().backward()


def _paged() -> None:
    numbers = torch.ones(1, 1, dtype=torch.int32)
    pages = _normal(2, 16, 2, 64)
    attention(_normal(1, 1, 4, 64), pages, pages, block_table=numbers, seqused_k=numbers[0])


def _option(**options: Any) -> Callable[[], None]:
    return lambda: _trained(**options)


def _function(*, grad: bool) -> None:
    bias = _normal(4, 16, 16, dtype=torch.float32, grad=grad)
    _trained(score=scores.additive_bias(bias), mask=lambda b, h, i, j: i >= j)


def _e4m3(q_dtype: torch.dtype) -> None:
    k = _normal(1, 16, 2, 64, dtype=torch.float8_e4m3fn)
    one = torch.ones(1)
    q_descale = one if q_dtype == k.dtype else None
    q = _normal(1, 16, 2, 64, dtype=q_dtype)
    attention(q, k, k, q_descale=q_descale, k_descale=one, v_descale=one)


def _in_forward_mode() -> None:
    qkv = tuple(_normal(1, 16, heads, 128) for heads in (4, 2, 2))
    torch.func.jvp(lambda *given: attention(*given, causal=True), qkv, qkv)


def _latent() -> None:
    cache = _normal(1, 16, 1, 576)
    attention(_normal(1, 1, 16, 576), cache, cache[..., :512])


ROWS: dict[str, tuple[Callable[[], None], ...]] = {
    "forward and backward, BF16 and FP16, head dimensions up to 256, GQA": (
        _trained,
        _option(d=256),
    ),
    "causal masks, sliding windows, softcap, sinks, dropout": (
        _option(window=(7, 0)),
        _option(softcap=30.0),
        _option(sinks=torch.zeros(4)),
        _option(dropout_p=0.1),
    ),
    "packed sequences, paged KV caches": (_packed, _paged),
    "masks and scores of your own": (lambda: _function(grad=False),),
    "gradients of biases that a score of yours reads": (lambda: _function(grad=True),),
    "derivatives in forward mode (jvp), head dimensions up to 128": (_in_forward_mode,),
    "FP8, as tensors or as a KV cache, without gradients": (
        lambda: _e4m3(torch.float8_e4m3fn),
        lambda: _e4m3(torch.bfloat16),
    ),
    "head dimensions up to 512": (_option(d=512),),
    "latent attention (MLA), without gradients": (_latent,),
}


def computes(arch: str, calls: tuple[Callable[[], None], ...]) -> bool:
    """Whether a GPU of this architecture computes all of the calls."""
    with patch.dict(os.environ, {VARIABLE: arch}):
        for call in calls:
            try:
                call()
            except UnsupportedError:
                return False
    return True


def gpus_block() -> str:
    """A row for each feature, a column for each generation of GPUs."""
    rows = [
        [what, *(_cell(archs, calls) for archs in COLUMNS.values()), "yes"]
        for what, calls in ROWS.items()
    ]
    rows.append(["tested", *(RAN.get(archs[0], EMULATED) for archs in COLUMNS.values()), "yes"])
    return wrap(GPUS, table(["", *COLUMNS, "CPU"], rows, left=5))


def _cell(archs: tuple[str, ...], calls: tuple[Callable[[], None], ...]) -> str:
    able = [arch for arch in archs if computes(arch, calls)]
    return "yes" if able == list(archs) else ", ".join(able) or "no"
