# SPDX-License-Identifier: Apache-2.0
"""`flash-attention explain`: which kernel a call would run, why, and at what cost."""

from __future__ import annotations

from typing import Annotated

import typer

from flash_attention.arch import ARCHES
from flash_attention.kernel_configs import parse_kernel_config
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
from flash_attention.tools.explain import explain as explain_call


def explain(
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
    arch: Annotated[
        str | None,
        typer.Option("--arch", help=f"one of {', '.join(ARCHES)}; the GPU here, or sm_90"),
    ] = None,
    num_sms: Annotated[
        int | None, typer.Option("--num-sms", help="multiprocessors of that GPU", min=1)
    ] = None,
    json: JsonOption = None,
) -> None:
    """Which kernel `attention` would run, why not others, how it is launched, what bounds it.

    The kernel is compiled and nothing runs; no GPU is needed.
    """
    sizes = CallShape.of(shape, batch, seq_q, seq_k, heads, heads_k, d, d_v)
    with quiet_compiles():
        explanation = explain_call(
            *sizes.meta(dtype),
            causal=causal,
            window=parse_window(window),
            softcap=softcap,
            split_keys=split_keys,
            return_lse=lse,
            config=None if config is None else parse_kernel_config(config),
            arch=arch,
            num_sms=num_sms,
        )
    if json is not None:
        write_json(json, explanation.to_dict())
    if str(json) != "-":
        print_report(explanation.rows())
