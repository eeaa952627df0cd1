# SPDX-License-Identifier: Apache-2.0
"""The registers at launch are those that ptxas gives a kernel with setmaxnreg."""

from __future__ import annotations

import pytest

from flash_attention.compile.elf import ENTRY
from flash_attention.compile.log import parse_log
from flash_attention.compile.nvrtc import compile_source, options
from ptx_emulator import load_program

SOURCE = """\
extern "C" __global__ void {bounds} flash_forward_kernel(float* x, int n) {{
  float values[64];
#pragma unroll
  for (int i = 0; i < {values}; ++i) values[i] = x[i * n + threadIdx.x];
#pragma unroll
  for (int i = 0; i < {values}; ++i) x[i * n + threadIdx.x] = values[{values} - 1 - i];
  if (threadIdx.x < 128) {{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 {fewer};");
  }} else {{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 {more};");
    x[threadIdx.x] = 1;
  }}
}}
"""


@pytest.mark.parametrize(
    ("bounds", "fewer", "more", "values", "expected"),
    [
        ("__launch_bounds__(384, 1)", 24, 240, 1, 168),
        ("__launch_bounds__(384, 1)", 24, 160, 1, 160),  # the highest count
        ("__launch_bounds__(256, 1)", 24, 256, 1, 256),
        ("__launch_bounds__(256, 1)", 24, 48, 64, 48),  # what the text needs changes nothing
        ("__launch_bounds__(256, 2)", 40, 216, 1, 128),
        ("__launch_bounds__(160, 2)", 40, 216, 1, 168),  # 10 warps count as 12
        ("__launch_bounds__(96, 7)", 24, 216, 1, 80),
        ("__maxnreg__(100)", 24, 240, 1, 104),
    ],
)
def test_ptxas_gives_the_registers_at_launch(
    bounds: str, fewer: int, more: int, values: int, expected: int
) -> None:
    source = SOURCE.format(bounds=bounds, fewer=fewer, more=more, values=values)
    compiled = compile_source(source, source_name="kernel.cu", arguments=options("sm_90a"))
    resources = parse_log(compiled.log, ENTRY)
    assert resources.notes == ()
    assert load_program(compiled.ptx).registers_at_launch == expected
    assert -(-resources.registers // 8) * 8 == expected


@pytest.mark.parametrize("bounds", ["", "__launch_bounds__(384)"])
def test_ptxas_ignores_setmaxnreg_where_the_registers_at_launch_are_unknown(bounds: str) -> None:
    source = SOURCE.format(bounds=bounds, fewer=24, more=240, values=1)
    compiled = compile_source(source, source_name="kernel.cu", arguments=options("sm_90a"))
    (note,) = parse_log(compiled.log, ENTRY).notes
    assert "'setmaxnreg' ignored" in note
    assert load_program(compiled.ptx).registers_at_launch is None
