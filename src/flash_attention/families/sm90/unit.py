# SPDX-License-Identifier: Apache-2.0
"""The translation unit of a forward kernel that has a folder of headers of its own."""

from __future__ import annotations

from collections.abc import Sequence

from flash_attention.arch import Arch
from flash_attention.compile.binding import Binding
from flash_attention.compile.elf import ENTRY
from flash_attention.compile.unit import Unit, render
from flash_attention.families.config import KernelConfig
from flash_attention.families.forward_args import LAYOUT_ASSERTS, PARAMETER


def forward_unit(
    config: KernelConfig,
    suffix: str,
    arch: Arch,
    *,
    folder: str,
    mapped: Sequence[str],
    bindings: tuple[Binding, ...],
    wrappers: Sequence[str],
    parameter: str = PARAMETER,
    asserts: str = LAYOUT_ASSERTS,
) -> Unit:
    """Return the unit of the kernel in include/fa/sm90/`folder`.

    `suffix` names its features, and `mapped` names the tensors that have a tensor map.
    `parameter` declares its arguments, whose layout `asserts` check.
    """
    name = config.kernel_name() + suffix
    maps = [f"{tensor}_map" for tensor in mapped]
    source = render(
        entry=f"{ENTRY}_{name}",
        title=config.short_form(),
        header=f"fa/sm90/{folder}/forward.cuh",
        bindings=bindings,
        wrappers=wrappers,
        asserts=asserts,
        bounds=f"{config.num_threads}, 1",
        parameters=(*(f"const __grid_constant__ fa::TensorMap {m}" for m in maps), parameter),
        body=(
            "extern __shared__ __align__(1024) char smem[];",
            f"fa::sm90::{folder}::forward<Config>({{{', '.join(maps)}}}, args, smem);",
        ),
    )
    return Unit(name, config.target(arch), source)
