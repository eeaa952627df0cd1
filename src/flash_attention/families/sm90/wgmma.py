# SPDX-License-Identifier: Apache-2.0
"""wgmma wrappers for the widths that a kernel uses, since the instruction names every register."""

from __future__ import annotations

from textwrap import wrap

from flash_attention.call.dtype import DType

_PTX_TYPE = {DType.FP16: "f16", DType.BF16: "bf16"}
_FRAGMENT = "#define FA_D(j) " + ", ".join(f'"+f"(d.v[0][j][{e}])' for e in range(4))
_COLUMNS = 88  # of the lists of registers and fragments


def from_shared(dtype: DType, width: int) -> str:
    """Write D (+)= A B^T for A and B in shared memory, both contiguous along the contraction."""
    count = width // 2
    return _specialisation(
        "WgmmaFromShared",
        dtype,
        width,
        "u64 a, u64 b, bool accumulate",
        operands=f"%{count}, %{count + 1}, accumulate, 1, 1, 0, 0",
        inputs='"l"(a), "l"(b), "r"(static_cast<int>(accumulate))',
        flag=f".reg .pred accumulate; setp.ne.b32 accumulate, %{count + 2}, 0; ",
    )


def from_registers(dtype: DType, width: int) -> str:
    """Write D += A B for A in registers and B in shared memory, contiguous along the width."""
    count = width // 2
    a = ", ".join(f"%{count + i}" for i in range(4))
    return _specialisation(
        "WgmmaFromRegisters",
        dtype,
        width,
        "const u32 (&a)[4], u64 b",
        operands=f"{{{a}}}, %{count + 4}, accumulate, 1, 1, 1",
        inputs='"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)',
        flag=".reg .pred accumulate; setp.eq.b32 accumulate, 0, 0; ",
    )


def _specialisation(
    name: str, dtype: DType, width: int, parameters: str, *, operands: str, inputs: str, flag: str
) -> str:
    element = _PTX_TYPE[dtype]
    registers = wrap(", ".join(f"%{i}" for i in range(width // 2)) + "},", _COLUMNS)
    fragments = wrap(", ".join(f"FA_D({j})" for j in range(width // 8)), _COLUMNS)
    return "\n".join(
        (
            _FRAGMENT,
            "template <>",
            f"struct fa::ptx::{name}<{dtype.to_cpp_str()}, {width}> {{",
            f"  static __device__ void run(Accumulator<16, {width}>& d, {parameters}) {{",
            "    asm volatile(",
            f'        "{{{flag}"',
            f'        "wgmma.mma_async.sync.aligned.m64n{width}k16.f32.{element}.{element} {{"',
            *(f'        "{row} "' for row in registers),
            f'        "{operands};}}"',
            "        : " + "\n          ".join(fragments),
            f"        : {inputs});",
            "  }",
            "};",
        )
    )
