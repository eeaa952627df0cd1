# SPDX-License-Identifier: Apache-2.0
"""The wgmma wrappers: what is written, and that the compiler takes every width."""

from __future__ import annotations

import re

import pytest

from flash_attention.compile import ENTRY, compile_to_ptx
from flash_attention.families.sm90.wgmma import from_registers, from_shared
from flash_attention.kernel_configs import DType

WIDTHS = range(16, 257, 16)
D_HEADS = range(16, 257, 16)
KERNEL = """
#include <fa/dtype.cuh>
#include <fa/ptx/math.cuh>
WRAPPERS
template <class DType, int Width>
__device__ void both(float* out, fa::u64 a, fa::u64 b) {
  fa::Accumulator<16, Width> d;
  d.zero();
  fa::ptx::wgmma_fence();
  CALL
  fa::ptx::wgmma_commit();
  fa::ptx::wgmma_wait<0>();
  for (int j = 0; j < Width / 8; ++j)
    for (int e = 0; e < 4; ++e) out[(j * 4 + e) * 128 + threadIdx.x] = d.v[0][j][e];
}
extern "C" __global__ void ENTRY(float* out, fa::u64 a, fa::u64 b) {
CALLS
}
"""
FROM_SHARED = """fa::ptx::WgmmaFromShared<DType, Width>::run(d, a, b, false);
  fa::ptx::WgmmaFromShared<DType, Width>::run(d, a, b, true);"""
FROM_REGISTERS = """const fa::u32 rows[4] = {threadIdx.x, 1, 2, 3};
  fa::ptx::WgmmaFromRegisters<DType, Width>::run(d, rows, b);"""


def operands(wrapper: str) -> tuple[str, list[str]]:
    """The instruction's name, and its operands with the braces of lists left in."""
    text = "".join(re.findall(r'"([^"]*?)"\s*$', wrapper, re.MULTILINE))
    found = re.search(r"(wgmma\S+) (.*);}", text)
    assert found is not None
    return found[1], re.findall(r"{[^}]*}|[^,{}\s]+", found[2])


@pytest.mark.parametrize(("dtype", "element"), [(DType.FP16, "f16"), (DType.BF16, "bf16")])
def test_the_instruction_names_its_shape_types_and_every_register(
    dtype: DType, element: str
) -> None:
    opcode, listed = operands(from_shared(dtype, 48))
    assert opcode == f"wgmma.mma_async.sync.aligned.m64n48k16.f32.{element}.{element}"
    d, *rest = listed
    assert d == "{" + ", ".join(f"%{i}" for i in range(24)) + "}"
    # Both operands are contiguous along the contraction: nothing is transposed.
    assert rest == ["%24", "%25", "accumulate", "1", "1", "0", "0"]


def test_the_second_product_reads_a_from_registers_and_b_along_its_width() -> None:
    opcode, listed = operands(from_registers(DType.BF16, 96))
    assert ".m64n96k16." in opcode
    d, a, *rest = listed
    assert d.count("%") == 48
    assert a == "{%48, %49, %50, %51}"
    assert rest == ["%52", "accumulate", "1", "1", "1"]  # of B, which is transposed


def test_registers_run_along_the_accumulator() -> None:
    wrapper = from_shared(DType.FP16, 96)
    assert re.findall(r"FA_D\((\d+)\)", wrapper) == [str(j) for j in range(12)]
    macro = wrapper.splitlines()[0].removeprefix("#define FA_D(j) ")
    assert macro == ", ".join(f'"+f"(d.v[0][j][{e}])' for e in range(4))


def test_no_line_is_too_wide_to_read() -> None:
    for width in WIDTHS:
        text = from_shared(DType.BF16, width) + from_registers(DType.BF16, width)
        assert max(len(line) for line in text.splitlines()) <= 100


@pytest.mark.parametrize("dtype", list(DType))
def test_every_width_of_scores_and_outputs_compiles_to_one_product_a_call(dtype: DType) -> None:
    for widths, write, call, calls_each in (
        (WIDTHS, from_shared, FROM_SHARED, 2),
        (D_HEADS, from_registers, FROM_REGISTERS, 1),
    ):
        name = dtype.to_cpp_str()
        source = KERNEL.replace("WRAPPERS", "\n".join(write(dtype, width) for width in widths))
        source = source.replace(
            "CALLS", "\n".join(f"  both<{name}, {w}>(out, a, b);" for w in widths)
        )
        source = source.replace("CALL", call).replace("ENTRY", ENTRY)
        compiled = compile_to_ptx(source, arch="sm_90a", name=f"{write.__name__}_{dtype.name}")
        shapes = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16", compiled.ptx)
        assert shapes == [str(width) for width in widths for _ in range(calls_each)]
