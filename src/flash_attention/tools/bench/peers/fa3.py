# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3: a library of torch operators built from vLLM's copy of it, plain or packed by
xz; $FLASH_ATTENTION_FA3 says where it is.
"""

from __future__ import annotations

import lzma
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flash_attention.errors import UnsupportedError
from flash_attention.tools.bench.case import Case
from flash_attention.tools.bench.names import FA3_VARIABLE
from flash_attention.tools.bench.timing import Contender

FA3_CAPABILITY = (9, 0)
FA3_CHOOSES = 0  # as its number of splits


def flash_attention_3(library: Path | None, name: str, case: Case) -> Contender:
    """FA3's operator, which takes sequences one after another and where each begins."""
    operator = load_fa3(_fa3_path(library))
    if not case.q.is_cuda or torch.cuda.get_device_capability(case.q.device) != FA3_CAPABILITY:
        raise UnsupportedError("needs an sm_90 GPU (H100, H200)")
    arguments = fa3_arguments(case)
    out: Tensor = arguments["out"]
    in_order = [arguments.get(argument, default) for argument, default in FA3_ARGUMENTS.items()]

    def run() -> Tensor:
        result: Tensor = operator(*in_order)[0]
        return result.view(case.q.shape)

    return Contender(name, run, poison=lambda: out.fill_(torch.nan))


def fa3_arguments(case: Case) -> dict[str, Any]:
    """What the operator is told of a case. It splits the keys of few queries as it likes."""
    point = case.point
    rows = dict(zip(("q", "k", "v"), (case.q, case.k, case.v), strict=True))
    if case.starts is None:
        rows = {name: tensor.flatten(0, 1) for name, tensor in rows.items()}
    arguments: dict[str, Any] = {
        **rows,
        "out": torch.empty_like(rows["q"]),
        "cu_seqlens_q": _starts(case, point.queries),
        "cu_seqlens_k": _starts(case, point.seq_len),
        "max_seqlen_q": point.queries,
        "max_seqlen_k": point.seq_len,
        "softmax_scale": point.d_head**-0.5,
        "is_causal": point.causal,
    }
    if case.window is not None:
        arguments["window_size_left"], arguments["window_size_right"] = case.window
    if point.decode:
        arguments["num_splits"] = FA3_CHOOSES
    return arguments


FA3_ARGUMENTS: dict[str, Any] = {
    **dict.fromkeys(("q", "k", "v", "k_new", "v_new", "q_v", "out")),
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_k_new")),
    **dict.fromkeys(("seqused_q", "seqused_k", "max_seqlen_q", "max_seqlen_k")),
    **dict.fromkeys(("page_table", "kv_batch_idx", "leftpad_k")),
    **dict.fromkeys(("rotary_cos", "rotary_sin", "seqlens_rotary")),
    **dict.fromkeys(("q_descale", "k_descale", "v_descale", "softmax_scale")),
    "is_causal": False,
    "window_size_left": -1,
    "window_size_right": -1,
    "softcap": 0.0,
    "is_rotary_interleaved": True,
    "scheduler_metadata": None,
    "num_splits": 1,
    "pack_gqa": None,
    "sm_margin": 0,
    "s_aux": None,
    "cp_world_size": 1,
    "cp_rank": 0,
    "cp_tot_seqused_k": None,
}
"""What FA3's operator takes, in its order, and what it is given unless there is more to say."""


@cache
def load_fa3(path: Path) -> Callable[..., Sequence[Tensor]]:
    """FA3's forward operator out of its library; a packed one is unpacked for as long as it takes.

    The mapping of a loaded library outlives its file.
    """
    with tempfile.TemporaryDirectory() as folder:
        library = path
        if path.suffix == ".xz":
            library = Path(folder) / path.stem
            library.write_bytes(lzma.decompress(path.read_bytes()))
        torch.ops.load_library(str(library))
    operator: Callable[..., Sequence[Tensor]] = torch.ops._vllm_fa3_C.fwd
    return operator


def _fa3_path(given: Path | None) -> Path:
    named = given or os.environ.get(FA3_VARIABLE)
    if not named:
        raise UnsupportedError(f"no library of it is named; set {FA3_VARIABLE} to its path")
    if not (path := Path(named)).is_file():
        raise UnsupportedError(f"there is no library {path}; set {FA3_VARIABLE} to its path")
    return path.resolve()


def _starts(case: Case, length: int) -> Tensor:
    """Where each sequence begins, and where the last ends."""
    if case.starts is not None:
        return case.starts
    entries = torch.arange(case.point.batch + 1, dtype=torch.int32, device=case.q.device)
    return entries * length
