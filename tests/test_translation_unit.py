# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from dataclasses import replace

import pytest

from flash_attention.compiler import ENTRY, compile_kernel
from flash_attention.compiler.includes import include_closure
from flash_attention.errors import CompileError
from flash_attention.features import CAUSAL, Features, SplitKind
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
)
from flash_attention.ladder import get_ladder
from flash_attention.translation_unit import combine_unit, translation_unit

CONFIG = next(
    rung.config
    for rung in reversed(get_ladder())
    if isinstance(rung.config, FlashForwardKernelConfig)
)
PLAIN = HopperForwardKernelConfig(DType.BF16, 96, 2, 80, 1)
NARROW = replace(PLAIN, dtype=DType.FP16, tma=True, specialised=True, narrow_keys=48)


def test_it_opens_with_the_config_and_has_the_one_entry() -> None:
    source = translation_unit(CONFIG)
    assert source.startswith(f"// {CONFIG.short_form()}\n#include <fa/sm80/forward.cuh>\n")
    assert source.count('extern "C" __global__') == 1
    assert f"{ENTRY}(const __grid_constant__ fa::ForwardKernelArgs args)" in source
    assert "__launch_bounds__(128)" in source


def test_only_the_named_variants_are_included() -> None:
    closure = include_closure(translation_unit(CONFIG))
    assert "fa/sm80/layout/xor_swizzle.cuh" in closure
    assert "fa/sm80/layout/row_major.cuh" not in closure
    plain = include_closure(translation_unit(replace(CONFIG, swizzled=False)))
    assert "fa/sm80/layout/row_major.cuh" in plain
    assert "fa/sm80/layout/xor_swizzle.cuh" not in plain


@pytest.mark.parametrize(("dtype", "header"), [(DType.FP16, "fp16"), (DType.BF16, "bf16")])
def test_parts_are_combined_by_a_kernel_of_their_own(dtype: DType, header: str) -> None:
    source = combine_unit(dtype, Features(splits=SplitKind.EVEN, heads_together=4), 64)
    assert source.count('extern "C" __global__ void __launch_bounds__(128)') == 1
    closure = include_closure(source)
    assert {name for name in closure if "dtype" in name} == {f"fa/dtype/{header}.cuh"}
    assert not any("schedule" in name or "forward" in name for name in closure)
    assert {name for name in closure if "splits" in name} == {"fa/sm90/splits/even.cuh"}


def test_a_variant_that_breaks_its_contract_is_named_first() -> None:
    source = translation_unit(CONFIG).replace(
        "struct Config {",
        "struct Forgetful { static __device__ int place(int, int); };\nstruct Config {",
    )
    source = source.replace("fa::sm80::layout::XorSwizzle;", "Forgetful;")
    with pytest.raises(CompileError) as error:
        compile_kernel(source, arch="sm_80", name="forgetful")
    first_error = error.value.log.split("error:")[1]
    assert "Layout: place(row, chunk), advance(address, bytes)" in first_error


@pytest.mark.parametrize(
    ("config", "slot", "contract"),
    [
        (PLAIN, "Copy", "Copy: Transfers<Config> with load_q"),
        (PLAIN, "Mask", "Mask: (args), kHasStart, first_key, end_key"),
        (NARROW, "Turns", "Turns: Order<Consumers>(warpgroup) with begin(), end()"),
        (NARROW, "Rescale", "Rescale: guess<Exponential, DType>"),
    ],
)
def test_a_hopper_variant_that_breaks_its_contract_is_named_first(
    config: HopperForwardKernelConfig, slot: str, contract: str
) -> None:
    source = translation_unit(config).replace(
        "struct Config {", "struct Empty {};\nstruct Config {"
    )
    source = re.sub(rf"using {slot} = [^;]+;", f"using {slot} = Empty;", source)
    with pytest.raises(CompileError) as error:
        compile_kernel(source, arch="sm_90a", name="empty")
    assert contract in error.value.log.split("error:")[1]


@pytest.mark.parametrize(
    ("config", "threads"),
    [
        (PLAIN, 256),
        (replace(PLAIN, tma=True), 256),
        (NARROW, 384),
        (replace(NARROW, consumers=3), 512),
    ],
)
def test_a_hopper_kernel_has_the_whole_multiprocessor(
    config: HopperForwardKernelConfig, threads: int
) -> None:
    source = translation_unit(config)
    assert source.startswith(f"// {config.short_form()}\n#include <fa/sm90/forward.cuh>\n")
    assert f"__launch_bounds__({threads}, 1)\n" in source
    assert "__align__(1024) char smem[]" in source


def test_tensor_maps_come_before_the_arguments_where_tma_reads_them() -> None:
    parameters = re.compile(rf"{ENTRY}\(([^)]*)\)")

    def listed(config: HopperForwardKernelConfig) -> list[str]:
        found = parameters.search(translation_unit(config))
        assert found is not None
        return [parameter.split(" ", 2)[-1] for parameter in re.split(r",\s+", found[1])]

    assert listed(PLAIN) == ["fa::ForwardKernelArgs args"]
    assert "fa::sm90::NoMaps{}" in translation_unit(PLAIN)
    maps = [f"fa::TensorMap {name}_map" for name in ("q", "k", "v", "o")]
    assert listed(NARROW) == [*maps, "fa::ForwardKernelArgs args"]
    assert "TensorMaps{q_map, k_map, v_map, o_map}" in translation_unit(NARROW)


def test_the_mask_is_bound_and_included_like_a_variant() -> None:
    for features, name in ((Features(), "Full"), (CAUSAL, "Causal")):
        source = translation_unit(NARROW, features)
        assert f"  using Mask = fa::attn::mask::{name};\n" in source
        masks = [header for header in include_closure(source) if "/mask/" in header]
        assert masks == [f"fa/attn/mask/{name.lower()}.cuh"]


def test_products_are_written_out_for_the_widths_in_use() -> None:
    wrapper = re.compile(r"struct fa::ptx::Wgmma(\w+)<fa::dtype::(\w+), (\d+)>")
    shared = ("FromShared", "Fp16")
    assert wrapper.findall(translation_unit(NARROW)) == [
        (*shared, "48"),
        (*shared, "80"),
        ("FromRegisters", "Fp16", "96"),
    ]
    assert wrapper.findall(translation_unit(PLAIN)) == [
        ("FromShared", "Bf16", "80"),
        ("FromRegisters", "Bf16", "96"),
    ]
