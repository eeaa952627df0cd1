# SPDX-License-Identifier: Apache-2.0
"""Gradients of others: torch's SDPA with each of its backends, and upstream FlashAttention-3.

Upstream's library brings a CUDA runtime, which may not share a process with cuDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from flash_attention.call.backward_call import Gradients
from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench.gradient_case import Forward, GradientCase, poison
from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.peers.fa3 import (
    FA3,
    check_hopper,
    fa3_forward_arguments,
    fa3_path,
    load_fa3,
    longest,
)
from flash_attention_workbench.bench.peers.lineup import Lineup, first_lines
from flash_attention_workbench.bench.peers.torch_sdpa import check_sdpa, needs_cuda
from flash_attention_workbench.bench.timing import Contender

FA3_DETERMINISTIC = "fa3_deterministic"
NO_DETERMINISTIC_D = 256  # FA3 has no deterministic mode there
PEER_NAMES = ("cudnn", "fa2", FA3, FA3_DETERMINISTIC, "efficient", "sdpa_math")


def line_up_gradients(names: Sequence[str], of: GradientCase, fa3: Path | None = None) -> Lineup:
    """Peers for a case, each run once."""
    ways: tuple[Callable[[str, GradientCase], Contender], ...] = (
        partial(_sdpa, SDPBackend.CUDNN_ATTENTION),
        flash_attention_2,
        partial(_flash_attention_3, fa3, False),
        partial(_flash_attention_3, fa3, True),
        partial(_sdpa, SDPBackend.EFFICIENT_ATTENTION),
        partial(_sdpa, SDPBackend.MATH),
    )
    peers = dict(zip(PEER_NAMES, ways, strict=True))
    present, missing = [], {}
    for name in names:
        try:
            if name not in peers:
                raise UnsupportedError(f"gradients are compared with {', '.join(PEER_NAMES)}")
            contender = peers[name](name, of)
            contender.run()
        except (UnsupportedError, RuntimeError, OSError) as reason:
            missing[name] = first_lines(reason)
        else:
            present.append(contender)
    return Lineup(tuple(present), missing)


def _sdpa(backend: SDPBackend, name: str, of: GradientCase) -> Contender:
    point = of.case.point
    check_sdpa(of.case)
    shared = point.kv_heads != point.heads

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        queries, keys, values = (tensor.transpose(1, 2) for tensor in (q, k, v))
        with sdpa_kernel(backend):
            out = scaled_dot_product_attention(
                queries, keys, values, is_causal=point.causal, enable_gqa=shared
            )
        return out.transpose(1, 2)

    return of.recorded(name, forward)


def flash_attention_2(name: str, of: GradientCase) -> Contender:
    """SDPA's flash backend, and for packed entries the operator below it."""
    point, starts = of.case.point, of.case.starts
    if starts is None:
        return _sdpa(SDPBackend.FLASH_ATTENTION, name, of)
    needs_cuda(of.case)

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = torch.ops.aten._flash_attention_forward(
            *(q, k, v, starts, starts, point.seq_len, point.seq_len),
            *(0.0, point.causal, False),
        )[0]
        return out

    return of.recorded(name, forward)


def _flash_attention_3(
    library: Path | None, deterministic: bool, name: str, of: GradientCase
) -> Contender:
    """Upstream's operators, in an autograd function for both passes."""
    operators = load_fa3(fa3_path(library))
    check_hopper(of.do)
    case = of.case
    if deterministic and case.point.d_head == NO_DETERMINISTIC_D:
        raise UnsupportedError(f"it has no deterministic mode at d_head {NO_DETERMINISTIC_D}")
    if of.measured is Measured.TRAINING:
        return of.recorded(name, fa3_attention(library, of, deterministic))
    gradients = Gradients(*(torch.empty_like(t) for t in (case.q, case.k, case.v)))
    tensors = (of.do, case.q, case.k, case.v, of.out, of.lse)
    arguments = fa3_backward_arguments(of, tensors, gradients, deterministic)

    def run() -> Gradients:
        operators.bwd(*arguments)
        return gradients

    return Contender(name, run, poison=lambda: poison(gradients))


def fa3_attention(library: Path | None, of: GradientCase, deterministic: bool = False) -> Forward:
    """Return upstream's operators for a case as a function that autograd records."""
    forward = partial(_Fa3.apply, load_fa3(fa3_path(library)), of, deterministic)
    return lambda q, k, v: forward(q, k, v)


class _Fa3(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        operators: Any,
        of: GradientCase,
        deterministic: bool,
        q: Tensor,
        k: Tensor,
        v: Tensor,
    ) -> Tensor:
        out, lse, *_ = operators.fwd(*fa3_forward_arguments(of.case, q, k, v))
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.asked = operators, of, deterministic
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> Any:
        operators, of, deterministic = ctx.asked
        saved = ctx.saved_tensors
        gradients = Gradients(*(torch.empty_like(t) for t in saved[:3]))
        operators.bwd(*fa3_backward_arguments(of, (do, *saved), gradients, deterministic))
        return None, None, None, *gradients[:3]


def fa3_backward_arguments(
    of: GradientCase, tensors: Sequence[Tensor], gradients: Gradients, deterministic: bool
) -> list[Any]:
    """Return the arguments of upstream's backward operator, in its order. `tensors` are do, q, k,
    v, o and lse."""
    point = of.case.point
    return [
        *tensors,
        *gradients[:3],
        *(of.case.starts, of.case.starts),
        *(None, None),  # seqused_q, seqused_k
        *longest(of.case),
        *(point.d_head**-0.5, point.causal),
        *(*(of.case.window or (-1, -1)), 0.0),  # window, softcap
        *(deterministic, 0),  # sm_margin
    ]
