# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3: upstream's library of torch operators for both passes, plain or packed by xz.

$FLASH_ATTENTION_FA3 says where it is. The CUDA runtime that it was built for lies beside it, which
may not share a process with cuDNN.
"""

from __future__ import annotations

import ctypes
import lzma
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.timing import Contender

FA3_VARIABLE = "FLASH_ATTENTION_FA3"
"""The path of FlashAttention-3's library, for `bench`; the option `--fa3` goes before it. It is
upstream's build, flash_attn_3_C.so, with libcudart.so.12 beside it; for the grid `serving` it is
vLLM's, _vllm_fa3_C.abi3.so. Both may be packed by xz."""
FA3 = "fa3"
FA3_CAPABILITY = (9, 0)
LIBRARY, CUDA_RUNTIME = "flash_attn_3_C.so", "libcudart.so.12"
FA3_CHOOSES = 0  # as its number of splits


def flash_attention_3(library: Path | None, name: str, case: Case) -> Contender:
    """FA3's forward operator: dense tensors, or packed sequences and where each begins."""
    operators = load_fa3(fa3_path(library))
    check_hopper(case.q)
    out = torch.empty_like(case.q)
    arguments = fa3_forward_arguments(case, case.q, case.k, case.v, out)

    def run() -> Tensor:
        result: Tensor = operators.fwd(*arguments)[0]
        return result

    return Contender(name, run, poison=lambda: out.fill_(torch.nan))


def fa3_forward_arguments(
    case: Case, q: Tensor, k: Tensor, v: Tensor, out: Tensor | None = None
) -> list[Any]:
    """Return the arguments of the forward operator, in its order. It splits the keys of few queries
    as it likes."""
    point = case.point
    return [
        *(q, k, v),
        *(None, None, None, out),  # k_new, v_new, q_v
        *(case.starts, case.starts, None),  # cu_seqlens of q, k and k_new
        *(None, None),  # seqused_q, seqused_k
        *longest(case),
        *(None,) * 9,  # pages, their batch and padding; rotary; descales of q, k and v
        *(point.d_head**-0.5, point.causal),
        *(case.window or (-1, -1)),
        *(0, 0.0, False, None),  # attention_chunk, softcap, is_rotary_interleaved, metadata
        *(FA3_CHOOSES if point.chunk else 1, None, 0),  # num_splits, pack_gqa, sm_margin
    ]


def longest(case: Case) -> tuple[int | None, int | None]:
    """Return max_seqlen_q and max_seqlen_k, which only packed sequences have."""
    length = None if case.starts is None else case.point.seq_len
    return length, length


def check_hopper(tensor: Tensor) -> None:
    """Raise UnsupportedError unless a tensor is on a GPU that FA3 runs on."""
    if not tensor.is_cuda or torch.cuda.get_device_capability(tensor.device) != FA3_CAPABILITY:
        raise UnsupportedError("needs an sm_90 GPU (H100, H200)")


def load_fa3(path: Path) -> Any:
    """Load the operators, `fwd` and `bwd`."""
    runtime = _runtime_beside(path)
    if path.name.removesuffix(".xz") != LIBRARY or runtime is None:
        raise UnsupportedError(
            f"{path} is not {LIBRARY} with {CUDA_RUNTIME} beside it, plain or packed by xz: pass"
            " upstream's build"
        )
    _load(path, runtime)
    return torch.ops.flash_attn_3


@cache
def _load(path: Path, runtime: Path) -> None:
    """Load a library and the runtime beside it; packed ones are unpacked for as long as it takes.

    The mapping of a loaded library outlives its file.
    """
    with tempfile.TemporaryDirectory() as folder:
        ctypes.CDLL(str(unpacked(runtime, Path(folder))), mode=ctypes.RTLD_GLOBAL)
        torch.ops.load_library(str(unpacked(path, Path(folder))))


def unpacked(path: Path, folder: Path) -> Path:
    """Return a library, which is unpacked into a folder if it is packed."""
    if path.suffix != ".xz":
        return path
    library = folder / path.stem
    library.write_bytes(lzma.decompress(path.read_bytes()))
    return library


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
