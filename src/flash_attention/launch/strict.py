# SPDX-License-Identifier: Apache-2.0
"""Strict mode: a call on the CPU raises an error if it would on a GPU."""

from __future__ import annotations

from flash_attention.call.any_call import AnyCall
from flash_attention.call.strict import strict_arch
from flash_attention.launch.plan import Plan


def check_as_on_a_gpu(call: AnyCall) -> None:
    """In strict mode, raise the error that a GPU would cause. Nothing is compiled."""
    arch = strict_arch()
    if arch is not None:
        Plan(call, arch=arch).bind(call)
