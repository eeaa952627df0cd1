# SPDX-License-Identifier: Apache-2.0
"""Other people's attention, to be timed beside ours: FlashAttention-2 and -3, and cuDNN.

FA2 and cuDNN come with torch. FA3 is a library of torch operators built from vLLM's copy of it,
plain or packed by xz; $FLASH_ATTENTION_FA3 says where it is.
"""

from __future__ import annotations

import lzma
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from flash_attention.bench.timing import Contender
from flash_attention.errors import UnsupportedError

PEERS = ("fa3", "cudnn", "fa2")
FA3_VARIABLE = "FLASH_ATTENTION_FA3"
FA3_CAPABILITY = (9, 0)

Prepare = Callable[[str, Tensor, Tensor, Tensor, bool], Contender]


@dataclass(frozen=True)
class Lineup:
    """The peers that can take a problem, and why the others cannot."""

    contenders: tuple[Contender, ...]
    missing: Mapping[str, str]


def line_up(
    names: Sequence[str],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    fa3: Path | None = None,
) -> Lineup:
    """Peers for (batch, seq, heads, d_head) tensors, each run once; `fa3` is FA3's library."""
    ways: tuple[Prepare, ...] = (
        partial(flash_attention_3, fa3),
        partial(sdpa, SDPBackend.CUDNN_ATTENTION),
        partial(sdpa, SDPBackend.FLASH_ATTENTION),
    )
    peers = dict(zip(PEERS, ways, strict=True))
    present, missing = [], {}
    for name in checked_names(names):
        try:
            contender = peers[name](name, q, k, v, causal)
            contender.run()
        except (UnsupportedError, RuntimeError, OSError) as reason:
            causes = (reason, reason.__cause__)
            missing[name] = ": ".join(str(c).partition("\n")[0] for c in causes if c)
        else:
            present.append(contender)
    return Lineup(tuple(present), missing)


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """`names`, if there are peers of these names."""
    for name in names:
        if name not in PEERS:
            raise UnsupportedError(f"unknown peer {name!r}; there are {', '.join(PEERS)}")
    return tuple(names)


def sdpa(
    backend: SDPBackend, name: str, q: Tensor, k: Tensor, v: Tensor, causal: bool
) -> Contender:
    """torch's SDPA with one of its backends."""
    if not q.is_cuda:
        raise UnsupportedError(f"needs CUDA tensors, q is on {q.device}")
    if causal and q.shape[1] != k.shape[1]:
        raise UnsupportedError(
            f"torch's causal mask starts at the first key, ours ends at the last: with {q.shape[1]}"
            f" queries and {k.shape[1]} keys they differ"
        )
    queries, keys, values = (tensor.transpose(1, 2) for tensor in (q, k, v))
    shared = q.shape[2] != k.shape[2]

    def run() -> Tensor:
        with sdpa_kernel(backend):
            out = scaled_dot_product_attention(
                queries, keys, values, is_causal=causal, enable_gqa=shared
            )
        return out.transpose(1, 2)

    return Contender(name, run)


def flash_attention_3(
    library: Path | None, name: str, q: Tensor, k: Tensor, v: Tensor, causal: bool
) -> Contender:
    """FA3's operator, which takes sequences one after another and where each begins."""
    operator = load_fa3(_fa3_path(library))
    if not q.is_cuda or torch.cuda.get_device_capability(q.device) != FA3_CAPABILITY:
        raise UnsupportedError("needs an sm_90 GPU (H100, H200)")
    (batch, seq_q, _, d_head), seq_k = q.shape, k.shape[1]
    out = torch.empty_like(q).flatten(0, 1)
    arguments: dict[str, Any] = {
        **dict(zip(("q", "k", "v"), (tensor.flatten(0, 1) for tensor in (q, k, v)), strict=True)),
        "out": out,
        "cu_seqlens_q": _starts(batch, seq_q, q.device),
        "cu_seqlens_k": _starts(batch, seq_k, q.device),
        "max_seqlen_q": seq_q,
        "max_seqlen_k": seq_k,
        "softmax_scale": d_head**-0.5,
        "is_causal": causal,
    }
    in_order = [arguments.get(argument, default) for argument, default in FA3_ARGUMENTS.items()]

    def run() -> Tensor:
        result: Tensor = operator(*in_order)[0]
        return result.view(q.shape)

    return Contender(name, run, poison=lambda: out.fill_(torch.nan))


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


def _starts(batch: int, length: int, device: torch.device) -> Tensor:
    """Where each of `batch` sequences of one length begins, and where the last ends."""
    return torch.arange(batch + 1, dtype=torch.int32, device=device) * length
