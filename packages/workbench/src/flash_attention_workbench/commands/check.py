# SPDX-License-Identifier: Apache-2.0
"""`flash-attention check`: is `attention` right at a shape, on this GPU or in the emulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from flash_attention.arch import MEASURED_ARCH
from flash_attention.call.results import unit_descales
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import chosen_set, get_kernel_configs
from flash_attention.launch.device import current_arch
from flash_attention.reference.judge import generate_qkv
from flash_attention_workbench.check import CheckReport
from flash_attention_workbench.check import check as check_call
from flash_attention_workbench.commands.call_options import CallOptions, CallShape, takes_call
from flash_attention_workbench.commands.console import quiet_compiles
from flash_attention_workbench.commands.emulated import check_size
from flash_attention_workbench.text import ReportRow

SMALL = "--emulate --shape 1,256,4,2,64"


@takes_call
def check(
    options: CallOptions,
    seed: Annotated[int, typer.Option(help="of q, k and v")] = 0,
    emulate: Annotated[
        bool, typer.Option("--emulate", help="run the kernel in the emulator; small shapes")
    ] = False,
) -> None:
    """Compare the output of `attention` with float64, beside 16-bit torch. Exit code 1 if wrong.

    q, k and v are random. Where $FLASH_ATTENTION_KERNELS names a set of kernels and --config is
    left out, every kernel of the set for this data type and head dimension is checked.
    """
    sizes = options.sizes
    dtype, device = options.torch_dtype, _device(sizes, emulate)
    q, k, v = generate_qkv(
        *(sizes.batch, sizes.seq_q, sizes.heads, sizes.d, dtype, device, seed),
        seq_len_k=sizes.seq_k,
        n_heads_k=sizes.heads_k,
        d_v=sizes.d_v,
    )
    with quiet_compiles():
        if options.config is None and chosen_set():
            report: CheckReport | SetReport = _check_set(options, q, k, v, emulate)
        else:
            keywords = options.keywords | unit_descales(q)
            report = check_call(q, k, v, **keywords, emulate=emulate)
    options.tell(report)
    if not report.ok:
        raise typer.Exit(1)


@dataclass(frozen=True)
class SetReport:
    """What became of the kernels of a set: reports, and why some compute nothing here."""

    reports: Mapping[str, CheckReport]  # by the short form
    refused: Mapping[str, str]

    @property
    def ok(self) -> bool:
        """Whether some kernel computed, and all that did are right."""
        return bool(self.reports) and all(report.ok for report in self.reports.values())

    def rows(self) -> list[ReportRow]:
        """A line a kernel."""
        checked = [(form, str(report.output)) for form, report in self.reports.items()]
        return [*checked, *((form, f"refused: {why}") for form, why in self.refused.items())]

    def to_dict(self) -> dict[str, Any]:
        """The reports, for scripts."""
        reports = {form: report.to_dict() for form, report in self.reports.items()}
        return {"ok": self.ok, "reports": reports, "refused": dict(self.refused)}


def _check_set(options: CallOptions, q: Tensor, k: Tensor, v: Tensor, emulate: bool) -> SetReport:
    """The kernels of the set that the environment names, of those of the tensors' own kind."""
    reports: dict[str, CheckReport] = {}
    refused: dict[str, str] = {}
    widest = max(options.sizes.d, options.sizes.d_v)
    for config in get_kernel_configs(arch=current_arch(MEASURED_ARCH)):
        if (config.input_dtype, config.d_head) != (q.dtype, widest):
            continue
        try:
            own = options.keywords | unit_descales(q) | {"config": config}
            reports[config.short_form()] = check_call(q, k, v, **own, emulate=emulate)
        except UnsupportedError as error:
            refused[config.short_form()] = str(error)
    return SetReport(reports, refused)


def _device(sizes: CallShape, emulate: bool) -> str:
    if emulate:
        check_size(sizes.scores, sizes.elements, SMALL)
    if not emulate and not torch.cuda.is_available():
        raise UnsupportedError(f"torch finds no CUDA device; pass {SMALL} to emulate the kernel")
    return "cpu" if emulate else "cuda"
