# SPDX-License-Identifier: Apache-2.0
"""Commands that look at one call of `attention`."""

from __future__ import annotations

from typing import Annotated

import typer

from flash_attention.arch import ARCHES
from flash_attention_workbench.commands.call_options import CallOptions, takes_call


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
    given = locals()
    from flash_attention_workbench.commands.explain import explain as run

    run(**given)


@takes_call
def check(
    options: CallOptions,
    seed: Annotated[int, typer.Option(help="of q, k and v")] = 0,
    emulate: Annotated[
        bool, typer.Option("--emulate", help="run the kernel in the emulator; small shapes")
    ] = False,
) -> None:
    """Hold the output of `attention` to float64, beside 16-bit torch. Exit code 1 if it is wrong.

    q, k and v are random. Where $FLASH_ATTENTION_KERNELS names a set of kernels and --config is
    left out, every kernel of the set for this data type and head dimension is checked.
    """
    given = locals()
    from flash_attention_workbench.commands.check import check as run

    run(**given)
