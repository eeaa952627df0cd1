# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import pytest

from flash_attention.compiler import ENTRY, compile_kernel
from flash_attention.compiler.includes import include_closure
from flash_attention.errors import CompileError
from flash_attention.ladder import get_ladder
from flash_attention.translation_unit import translation_unit

CONFIG = get_ladder()[-1].config


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
