# SPDX-License-Identifier: Apache-2.0
"""The kernel that the options of a command choose: a rung, or a config."""

from __future__ import annotations

from flash_attention.kernel_configs import DType, KernelConfig, as_kernel_config
from flash_attention.ladder import pick_rung
from flash_attention_workbench.commands.options import ladder_of


def chosen_kernel(
    rung: int, config: str | None, *, dtype: str, d_head: int, heads: int
) -> tuple[str, KernelConfig]:
    """A kernel and what to call it: the config if one is given, else the rung."""
    if config is not None:
        return "kernel", as_kernel_config(
            config, dtype=DType.from_string(dtype), d_head=d_head, n_heads=heads
        )
    chosen = pick_rung(ladder_of(dtype, d_head, heads), rung)
    return f"rung {chosen.number} {chosen.name}", chosen.config
