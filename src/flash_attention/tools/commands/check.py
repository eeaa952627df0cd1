# SPDX-License-Identifier: Apache-2.0
"""`flash-attention check`: is `attention` right at a shape, on this GPU or in the emulator."""

from __future__ import annotations

from typing import Annotated

import torch
import typer

from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType, parse_kernel_config
from flash_attention.reference.judge import generate_qkv
from flash_attention.tools.check import check as check_call
from flash_attention.tools.commands.call_options import (
    SHAPE,
    BatchOption,
    CallShape,
    DOption,
    DVOption,
    HeadsKOption,
    HeadsQOption,
    JsonOption,
    LseOption,
    MaskOption,
    SelectedOption,
    SeqKOption,
    SeqQOption,
    ShapeOption,
    SoftcapOption,
    SplitKeysOption,
    WindowOption,
    parse_window,
    write_json,
)
from flash_attention.tools.commands.console import print_report, quiet_compiles
from flash_attention.tools.commands.options import DTypeOption

EMULATED_SCORES = 1 << 26  # which take the emulator about a minute
SMALL = "--emulate --shape 1,256,4,2,64"


def check(
    shape: ShapeOption = SHAPE,
    batch: BatchOption = None,
    seq_q: SeqQOption = None,
    seq_k: SeqKOption = None,
    heads: HeadsQOption = None,
    heads_k: HeadsKOption = None,
    d: DOption = None,
    d_v: DVOption = None,
    dtype: DTypeOption = "bf16",
    causal: MaskOption = False,
    window: WindowOption = None,
    softcap: SoftcapOption = 0.0,
    split_keys: SplitKeysOption = None,
    lse: LseOption = False,
    config: SelectedOption = None,
    seed: Annotated[int, typer.Option(help="of q, k and v")] = 0,
    emulate: Annotated[
        bool, typer.Option("--emulate", help="run the kernel in the emulator; small shapes")
    ] = False,
    json: JsonOption = None,
) -> None:
    """Hold the output of `attention` to float64, beside 16-bit torch. Exit code 1 if it is wrong.

    q, k and v are random.
    """
    sizes = CallShape.of(shape, batch, seq_q, seq_k, heads, heads_k, d, d_v)
    device = _device(sizes, emulate)
    q, k, v = generate_qkv(
        *(sizes.batch, sizes.seq_q, sizes.heads, sizes.d, DType.from_string(dtype), device, seed),
        seq_len_k=sizes.seq_k,
        n_heads_k=sizes.heads_k,
        d_v=sizes.d_v,
    )
    with quiet_compiles():
        report = check_call(
            *(q, k, v),
            causal=causal,
            window=parse_window(window),
            softcap=softcap,
            split_keys=split_keys,
            return_lse=lse,
            config=None if config is None else parse_kernel_config(config),
            emulate=emulate,
        )
    if json is not None:
        write_json(json, report.to_dict())
    if str(json) != "-":
        print_report(report.rows())
    if not report.ok:
        raise typer.Exit(1)


def _device(sizes: CallShape, emulate: bool) -> str:
    if emulate and sizes.scores > EMULATED_SCORES:
        raise UnsupportedError(
            f"the shape has {sizes.scores:,} scores, and the emulator takes minutes from"
            f" {EMULATED_SCORES:,} on; pass a smaller one, such as {SMALL}"
        )
    if not emulate and not torch.cuda.is_available():
        raise UnsupportedError(f"torch finds no CUDA device; pass {SMALL} to emulate the kernel")
    return "cpu" if emulate else "cuda"
