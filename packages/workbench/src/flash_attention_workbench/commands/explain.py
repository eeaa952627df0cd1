# SPDX-License-Identifier: Apache-2.0
"""`flash-attention explain`: which kernel a call would run, why, and at what cost."""

from __future__ import annotations

from typing import Annotated

import typer

from flash_attention.arch import ARCHES
from flash_attention.call.results import unit_descales
from flash_attention_workbench.commands.call_options import CallOptions, takes_call
from flash_attention_workbench.commands.console import quiet_compiles
from flash_attention_workbench.explain import explain as explain_call


@takes_call
def explain(
    options: CallOptions,
    arch: Annotated[
        str | None, typer.Option(help=f"one of {', '.join(ARCHES)}; the GPU here, or sm_90")
    ] = None,
    num_sms: Annotated[int | None, typer.Option(help="multiprocessors of that GPU", min=1)] = None,
) -> None:
    """Which kernel `attention` would run, why not others, how it is launched, what bounds it.

    The kernel is compiled and nothing runs; no GPU is needed.
    """
    with quiet_compiles():
        tensors = options.sizes.meta(options.torch_dtype)
        keywords = options.keywords | unit_descales(tensors[0])
        explanation = explain_call(*tensors, **keywords, arch=arch, num_sms=num_sms)
    options.tell(explanation)
