# SPDX-License-Identifier: Apache-2.0
"""The text NVRTC compiles: includes, `struct Config`, and the kernel entry."""

from __future__ import annotations

from collections.abc import Sequence

from flash_attention.arch import WARP_SIZE
from flash_attention.chunks import COMBINE_THREADS
from flash_attention.compiler import ENTRY
from flash_attention.features import PLAIN, Features
from flash_attention.kernel_args import layout_asserts
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
)
from flash_attention.kernel_configs.binding import Binding, Number, Variant, headers, render_struct
from flash_attention.kernel_configs.hopper_forward import (
    BARRIER_BYTES,
    WARP_ROWS,
    WARPGROUP_ROWS,
    tile_rows,
)
from flash_attention.wgmma import from_registers, from_shared

ARGS = "const __grid_constant__ fa::ForwardKernelArgs args"
MAPS = [f"const __grid_constant__ fa::TensorMap {tensor}_map" for tensor in "qkvo"]


def translation_unit(config: KernelConfig, features: Features = PLAIN) -> str:
    """The whole .cu of one kernel, as a person would write it."""
    if isinstance(config, HopperForwardKernelConfig):
        return _hopper(config, features)
    return _sm80(config, features)


def combine_unit(dtype: DType, features: Features, tile_rows: int) -> str:
    """The whole .cu of the kernel that combines parts whose tiles have so many rows."""
    bindings = (
        Variant("DType", "dtype", dtype.to_cpp_str().rsplit("::", 1)[-1]),
        Number("tile_rows", tile_rows),
        Number("warps", COMBINE_THREADS // WARP_SIZE),
        features.rows(),
        Variant("Splits", "sm90/splits", features.splits.value),
    )
    return "\n".join(
        (
            f"// parts of {dtype.name} rows become one",
            *(f"#include <{include}>" for include in ("fa/sm90/combine.cuh", *headers(bindings))),
            "",
            render_struct(bindings),
            "",
            layout_asserts(),
            "",
            f'extern "C" __global__ void __launch_bounds__({COMBINE_THREADS})',
            f"{ENTRY}({ARGS}) {{",
            "  fa::sm90::combine<Config>(args);",
            "}",
            "",
        )
    )


def _sm80(config: FlashForwardKernelConfig, features: Features) -> str:
    return _text(
        config,
        header="fa/sm80/forward.cuh",
        bindings=(
            *features.bind_first_family(config.bindings()),
            Number("smem_bytes", config.smem_bytes()),
        ),
        wrappers=(),
        bounds=f"{config.num_threads}",
        parameters=(ARGS,),
        call="fa::sm80::forward<Config>(args, smem)",
    )


def _hopper(config: HopperForwardKernelConfig, features: Features) -> str:
    widths = sorted({config.B_c, config.narrow_keys} - {0})
    maps = (
        "fa::sm90::TensorMaps{q_map, k_map, v_map, o_map}" if config.tma else "fa::sm90::NoMaps{}"
    )
    return _text(
        config,
        header="fa/sm90/forward.cuh",
        bindings=(*features.bind_hopper(config.bindings()), *_host_numbers(config, features)),
        wrappers=(
            *(from_shared(config.dtype, width) for width in widths),
            from_registers(config.dtype, config.d_head),
        ),
        bounds=f"{config.num_threads}, {config.side_by_side}",
        parameters=(*(MAPS if config.tma else ()), ARGS),
        call=f"fa::sm90::forward<Config>({maps}, args, smem)",
    )


def _host_numbers(config: HopperForwardKernelConfig, features: Features) -> tuple[Number, ...]:
    """What launches, parts and tensor maps are made of: the headers assert that they agree."""
    q_heads, q_queries = features.q_box
    o_heads, o_queries = features.o_box
    return (
        Number("warpgroup_rows", WARPGROUP_ROWS),
        Number("warp_rows", WARP_ROWS),
        Number("tile_rows", tile_rows(config.consumers, features.heads_together)),
        Number("own_output", int(config.own_output)),
        Number("barrier_bytes", BARRIER_BYTES),
        Number("smem_bytes", config.smem_bytes()),
        Number("panel_columns", config.panel_columns),
        Number("q_box_heads", q_heads),
        Number("q_box_queries", q_queries),
        Number("o_box_heads", o_heads),
        Number("o_box_queries", o_queries),
        Number("box_keys", features.box_keys(config.B_c)),
    )


def _text(
    config: KernelConfig,
    *,
    header: str,
    bindings: tuple[Binding, ...],
    wrappers: Sequence[str],
    bounds: str,
    parameters: Sequence[str],
    call: str,
) -> str:
    separator = ",\n" + " " * (len(ENTRY) + 1)
    return "\n".join(
        (
            f"// {config.short_form()}",
            *(f"#include <{include}>" for include in (header, *headers(bindings))),
            "",
            render_struct(bindings),
            "",
            *(line for wrapper in wrappers for line in (wrapper, "")),
            layout_asserts(),
            "",
            f'extern "C" __global__ void __launch_bounds__({bounds})',
            f"{ENTRY}({separator.join(parameters)}) {{",
            "  extern __shared__ __align__(1024) char smem[];",
            f"  {call};",
            "}",
            "",
        )
    )
