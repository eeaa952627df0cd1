# SPDX-License-Identifier: Apache-2.0
"""The kernel that combines parts: what its translation unit binds, and that it compiles."""

from __future__ import annotations

import pytest

from flash_attention.compile import compile_kernel
from flash_attention.compile.includes import include_closure
from flash_attention.families.sm90.forward.combine import THREADS, combine_unit
from flash_attention.families.sm90.forward.features import Sm90Features, SplitKind
from flash_attention.kernel_configs import DType

EVEN = Sm90Features(splits=SplitKind.EVEN, heads_together=4)


@pytest.mark.parametrize(("dtype", "header"), [(DType.FP16, "fp16"), (DType.BF16, "bf16")])
def test_parts_are_combined_by_a_kernel_of_their_own(dtype: DType, header: str) -> None:
    unit = combine_unit(dtype, EVEN, 64, 128, "sm_90a")
    bounds = f'extern "C" __global__ void __launch_bounds__({THREADS})'
    assert unit.source.count(bounds) == 1
    closure = include_closure(unit.source)
    assert f"using DType = fa::dtype::{header.title()};" in unit.source
    assert "using Splits = fa::sm90::splits::Even;" in unit.source
    assert not any("schedule" in name or "forward.cuh" in name for name in closure)
    assert (unit.name, unit.target) == (f"combine_{header}_64_heads_4_even", "sm_90a")


def test_units_differ_whenever_their_arguments_do() -> None:
    fixed = Sm90Features(splits=SplitKind.FIXED)
    units = [
        combine_unit(DType.BF16, EVEN, 64, 128, "sm_90a"),
        combine_unit(DType.FP16, EVEN, 64, 128, "sm_90a"),
        combine_unit(DType.BF16, fixed, 64, 128, "sm_90a"),
        combine_unit(DType.BF16, EVEN, 128, 128, "sm_90a"),
        combine_unit(DType.BF16, Sm90Features(splits=SplitKind.EVEN), 64, 128, "sm_90a"),
        combine_unit(DType.BF16, EVEN, 64, 512, "sm_90a"),
    ]
    assert len({unit.source for unit in units}) == len({unit.name for unit in units}) == len(units)
    for unit in (*units[:3], units[-1]):
        compiled = compile_kernel(unit.source, arch=unit.target, name=unit.name)
        assert compiled.resources.spill_bytes == 0
