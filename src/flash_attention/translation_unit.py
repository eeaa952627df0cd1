# SPDX-License-Identifier: Apache-2.0
"""The text NVRTC compiles: includes, `struct Config`, and the kernel entry."""

from __future__ import annotations

from flash_attention.compiler import ENTRY
from flash_attention.kernel_args import layout_asserts
from flash_attention.kernel_configs import FlashForwardKernelConfig
from flash_attention.kernel_configs.binding import Variant, headers, render_struct


def translation_unit(config: FlashForwardKernelConfig) -> str:
    """The whole .cu of one kernel, as a person would write it."""
    bindings = (*config.bindings(), Variant("Mask", "attn/mask", "None"))
    includes = ["fa/sm80/forward.cuh", *headers(bindings)]
    return "\n".join(
        (
            f"// {config.short_form()}",
            *(f"#include <{header}>" for header in includes),
            "",
            render_struct(bindings),
            "",
            layout_asserts(),
            "",
            f'extern "C" __global__ void __launch_bounds__({config.num_threads})',
            f"{ENTRY}(const __grid_constant__ fa::ForwardKernelArgs args) {{",
            "  extern __shared__ __align__(1024) char smem[];",
            "  fa::sm80::forward<Config>(args, smem);",
            "}",
            "",
        )
    )
