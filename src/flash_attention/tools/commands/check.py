# SPDX-License-Identifier: Apache-2.0
"""`flash-attention check`: is `attention` right at a shape, on this GPU or in the emulator."""

from __future__ import annotations

import torch
import typer

from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType
from flash_attention.reference.judge import generate_qkv
from flash_attention.tools.check import check as check_call
from flash_attention.tools.commands.call_options import CallOptions, CallShape
from flash_attention.tools.commands.console import quiet_compiles
from flash_attention.tools.commands.emulated import check_size

SMALL = "--emulate --shape 1,256,4,2,64"


def check(
    options: CallOptions,
    seed: int,
    emulate: bool,
) -> None:
    """Hold the output of `attention` to float64, beside 16-bit torch."""
    sizes = options.sizes
    dtype, device = DType.from_string(options.dtype), _device(sizes, emulate)
    q, k, v = generate_qkv(
        *(sizes.batch, sizes.seq_q, sizes.heads, sizes.d, dtype, device, seed),
        seq_len_k=sizes.seq_k,
        n_heads_k=sizes.heads_k,
        d_v=sizes.d_v,
    )
    with quiet_compiles():
        report = check_call(q, k, v, **options.keywords, emulate=emulate)
    options.tell(report)
    if not report.ok:
        raise typer.Exit(1)


def _device(sizes: CallShape, emulate: bool) -> str:
    if emulate:
        check_size(sizes.scores, sizes.elements, SMALL)
    if not emulate and not torch.cuda.is_available():
        raise UnsupportedError(f"torch finds no CUDA device; pass {SMALL} to emulate the kernel")
    return "cpu" if emulate else "cuda"
