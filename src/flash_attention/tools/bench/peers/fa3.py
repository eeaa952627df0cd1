# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3: a library of torch operators, plain or packed by xz; $FLASH_ATTENTION_FA3 says
where it is. That of vLLM's copy has the forward pass. Upstream's has both passes, and the CUDA
runtime that it was built for lies beside it, which may not share a process with cuDNN.
"""

from __future__ import annotations

import ctypes
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
UPSTREAM, CUDA_RUNTIME = "flash_attn_3_C.so", "libcudart.so.12"
FA3_CHOOSES = 0  # as its number of splits


def flash_attention_3(library: Path | None, name: str, case: Case) -> Contender:
    """FA3's operator, which takes sequences one after another and where each begins."""
    operator = load_fa3(fa3_path(library))
    check_hopper(case.q)
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


def check_hopper(tensor: Tensor) -> None:
    """Raise UnsupportedError unless a tensor is on a GPU that FA3 runs on."""
    if not tensor.is_cuda or torch.cuda.get_device_capability(tensor.device) != FA3_CAPABILITY:
        raise UnsupportedError("needs an sm_90 GPU (H100, H200)")


def load_fa3(path: Path) -> Callable[..., Sequence[Tensor]]:
    """FA3's forward operator out of vLLM's library."""
    if _is_upstream(path):
        raise UnsupportedError(
            f"{path} is upstream's build, whose {CUDA_RUNTIME} may not share a process with cuDNN;"
            " pass vLLM's for the forward pass"
        )
    _load(path)
    operator: Callable[..., Sequence[Tensor]] = torch.ops._vllm_fa3_C.fwd
    return operator


def load_upstream(path: Path) -> Any:
    """Upstream's operators, `fwd` and `bwd`."""
    if not _is_upstream(path) or _runtime_beside(path) is None:
        raise UnsupportedError(
            f"{path} is not {UPSTREAM} with {CUDA_RUNTIME} beside it, plain or packed by xz, which"
            " gradients are compared with"
        )
    _load(path)
    return torch.ops.flash_attn_3


@cache
def _load(path: Path) -> None:
    """Load a library and the runtime beside it; packed ones are unpacked for as long as it takes.

    The mapping of a loaded library outlives its file.
    """
    with tempfile.TemporaryDirectory() as folder:
        runtime = _runtime_beside(path) if _is_upstream(path) else None
        if runtime is not None:
            ctypes.CDLL(str(_unpacked(runtime, Path(folder))), mode=ctypes.RTLD_GLOBAL)
        torch.ops.load_library(str(_unpacked(path, Path(folder))))


def _unpacked(path: Path, folder: Path) -> Path:
    if path.suffix != ".xz":
        return path
    library = folder / path.stem
    library.write_bytes(lzma.decompress(path.read_bytes()))
    return library


def _is_upstream(path: Path) -> bool:
    return path.name.removesuffix(".xz") == UPSTREAM


def _runtime_beside(path: Path) -> Path | None:
    names = (CUDA_RUNTIME, f"{CUDA_RUNTIME}.xz")
    return next((p for name in names if (p := path.parent / name).is_file()), None)


def fa3_path(given: Path | None) -> Path:
    """The library that is given, or that the environment names."""
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
