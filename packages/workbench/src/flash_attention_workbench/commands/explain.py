# SPDX-License-Identifier: Apache-2.0
"""`flash-attention explain`: which kernel a call would run, why, and at what cost."""

from __future__ import annotations

from flash_attention.call.results import unit_descales
from flash_attention_workbench.commands.call_options import CallOptions
from flash_attention_workbench.commands.console import quiet_compiles
from flash_attention_workbench.explain import explain as explain_call


def explain(
    options: CallOptions,
    arch: str | None,
    num_sms: int | None,
) -> None:
    """Which kernel `attention` would run, why not others, how it is launched, what bounds it."""
    with quiet_compiles():
        tensors = options.sizes.meta(options.torch_dtype)
        keywords = options.keywords | unit_descales(tensors[0])
        explanation = explain_call(*tensors, **keywords, arch=arch, num_sms=num_sms)
    options.tell(explanation)
