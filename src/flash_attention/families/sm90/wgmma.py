# SPDX-License-Identifier: Apache-2.0
"""wgmma wrappers for the widths that a kernel uses, since the instruction names every register."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap

from flash_attention.call.dtype import DType


@dataclass(frozen=True)
class Element:
    """The element type of A and B: its C++ type, its PTX type, and the depth of one product."""

    cpp: str
    ptx: str
    depth: int

    def majors(self, *along: bool) -> str:
        """Say of operands in shared memory whether they are contiguous along the rows of A, or the
        width, instead of the contraction. 8-bit operands never are, and it is not said."""
        return "" if self is E4M3 else "".join(f", {int(each)}" for each in along)


ELEMENTS = {
    dtype: Element(dtype.to_cpp_str(), ptx, 16)
    for dtype, ptx in ((DType.FP16, "f16"), (DType.BF16, "bf16"))
}
E4M3 = Element("fa::ptx::E4m3", "e4m3", 32)
_FRAGMENT = "#define FA_D(j) " + ", ".join(f'"+f"(d.v[0][j][{e}])' for e in range(4))
_FRESH = "#define FA_FRESH(j) " + ", ".join(f'"=f"(d.v[0][j][{e}])' for e in range(4))
_COLUMNS = 90  # of the lists of registers and fragments, as clang-format would break them


def from_shared(dtype: DType | Element, width: int) -> str:
    """Write D (+)= A B^T for A and B in shared memory, both contiguous along the contraction."""
    count = width // 2
    element = _element(dtype)
    return _specialisation(
        "WgmmaFromShared",
        element,
        width,
        "u64 a, u64 b, bool accumulate",
        operands=f"%{count}, %{count + 1}, accumulate, 1, 1{element.majors(False, False)}",
        inputs='"l"(a), "l"(b), "r"(static_cast<int>(accumulate))',
        flag=f".reg .pred accumulate; setp.ne.b32 accumulate, %{count + 2}, 0; ",
    )


def from_registers(dtype: DType, width: int) -> str:
    """Write D += A B for A in registers and B in shared memory, contiguous along the width."""
    count = width // 2
    a = ", ".join(f"%{count + i}" for i in range(4))
    return _specialisation(
        "WgmmaFromRegisters",
        _element(dtype),
        width,
        "const u32 (&a)[4], u64 b",
        operands=f"{{{a}}}, %{count + 4}, accumulate, 1, 1, 1",
        inputs='"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)',
        flag=".reg .pred accumulate; setp.eq.b32 accumulate, 0, 0; ",
    )


def both_shared(dtype: DType, width: int, *, a_along_rows: bool, b_along_width: bool) -> str:
    """Write D = A B and D += A B for A and B in shared memory. They are contiguous along the
    contraction, or along the rows of A and the width."""
    count = width // 2
    along = (a_along_rows, b_along_width)
    arguments = ", ".join(str(each).lower() for each in along)
    transposes = ", ".join(str(int(each)) for each in along)
    return _start_and_run(
        f"WgmmaBothShared<{dtype.to_cpp_str()}, {width}, {arguments}>",
        _element(dtype),
        width,
        "u64 a, u64 b",
        operands=f"%{count}, %{count + 1}, accumulate, 1, 1, {transposes}",
        inputs='"l"(a), "l"(b)',
    )


def from_registers_by_rows(dtype: DType | Element, width: int) -> str:
    """Write D = A B^T and D += A B^T for A in registers and B in shared memory, contiguous along
    the contraction."""
    count = width // 2
    element = _element(dtype)
    a = ", ".join(f"%{count + i}" for i in range(4))
    return _start_and_run(
        f"WgmmaFromRegistersByRows<{element.cpp}, {width}>",
        element,
        width,
        "const u32 (&a)[4], u64 b",
        operands=f"{{{a}}}, %{count + 4}, accumulate, 1, 1{element.majors(False)}",
        inputs='"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)',
    )


def _element(dtype: DType | Element) -> Element:
    return dtype if isinstance(dtype, Element) else ELEMENTS[dtype]


def _start_and_run(
    struct: str, element: Element, width: int, parameters: str, *, operands: str, inputs: str
) -> str:
    def method(name: str, fragment: str, compare: str) -> tuple[str, ...]:
        flag = f".reg .pred accumulate; setp.{compare}.b32 accumulate, 0, 0; "
        return _method(
            *(name, element, width, parameters),
            operands=operands,
            inputs=inputs,
            flag=flag,
            fragment=fragment,
        )

    return "\n".join(
        (
            _FRAGMENT,
            _FRESH,
            "template <>",
            f"struct fa::ptx::{struct} {{",
            *method("start", "FA_FRESH", "ne"),
            *method("run", "FA_D", "eq"),
            "};",
        )
    )


def _specialisation(
    name: str,
    element: Element,
    width: int,
    parameters: str,
    *,
    operands: str,
    inputs: str,
    flag: str,
) -> str:
    return "\n".join(
        (
            _FRAGMENT,
            "template <>",
            f"struct fa::ptx::{name}<{element.cpp}, {width}> {{",
            *_method(
                *("run", element, width, parameters), operands=operands, inputs=inputs, flag=flag
            ),
            "};",
        )
    )


def _method(
    name: str,
    element: Element,
    width: int,
    parameters: str,
    *,
    operands: str,
    inputs: str,
    flag: str,
    fragment: str = "FA_D",
) -> tuple[str, ...]:
    types = f"{element.ptx}.{element.ptx}"
    registers = wrap(", ".join(f"%{i}" for i in range(width // 2)) + "},", _COLUMNS - 2)
    fragments = wrap(", ".join(f"{fragment}({j})" for j in range(width // 8)), _COLUMNS)
    return (
        f"  static __device__ void {name}(Accumulator<16, {width}>& d, {parameters}) {{",
        "    asm volatile(",
        f'        "{{{flag}"',
        f'        "wgmma.mma_async.sync.aligned.m64n{width}k{element.depth}.f32.{types} {{"',
        *(f'        "{row} "' for row in registers),
        f'        "{operands};}}"',
        "        : " + "\n          ".join(fragments),
        f"        : {inputs});",
        "  }",
    )
