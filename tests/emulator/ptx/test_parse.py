# SPDX-License-Identifier: Apache-2.0
"""PTX text against the exact model it stands for, and real kernels against a plain search."""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest

from flash_attention.arch import ARCHES
from flash_attention.families.forward_args import ForwardKernelArgs
from flash_attention.families.registry import unit_of
from flash_attention.ladder import get_ladder
from flash_attention.launch.emulation import compiled_unit
from ptx_emulator.errors import PtxError
from ptx_emulator.ptx.model import (
    Instruction,
    Kernel,
    Label,
    Memory,
    Param,
    Reg,
    Symbol,
    Variable,
    Vector,
)
from ptx_emulator.ptx.parse import parse

DECLARED = """
.reg .pred %p<4>; .reg .b16 %rs<4>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>;
.shared .align 4 .b8 tile[64];
"""


def body(text: str) -> Kernel:
    """A kernel with the usual registers; the first line of `text` is line 5."""
    assert text[0] == "\n"
    (kernel,) = parse(
        f".visible .entry k(.param .u64 k_param_0)\n{{{DECLARED}{text[1:]}\n}}"
    ).values()
    return kernel


SMALL = """\
.version 9.0
.target sm_90a, debug
.address_size 64
// a comment; with { braces
.extern .shared .align 1024 .b8 smem[];
.visible .entry scale(
  .param .u64 scale_param_0, /* two
  lines */ .param .u32 scale_param_1
)
.maxntid 128, 2, 1
.minnctapersm 2
{
  .reg .pred %p<2>;
  .reg .f32 %f<2>;
  .reg .b64 %rd<2>;
  .loc 1 7 3
  ld.param.u64 %rd1, [scale_param_0];
$L__BB0_1:
  .loc 2 9 1, function_name $L__info_string0, inlined_at 1 8 3
  @!%p1 st.global.v2.f32 [%rd1+-16], {%f0,
     %f1};
  @%p1 bra.uni $L__BB0_1;
  ret;
}
.file 1 "main.cu"
.file 2 "inner.cuh", 17, 4
.section .debug_str
{
$L__info_string0:
.b8 95
}
"""


def test_a_place_names_its_caller() -> None:
    first, inlined, *_ = parse(SMALL)["scale"].instructions
    assert first.source == "main.cu:7"
    assert inlined.source == "inner.cuh:9, called from main.cu:8"


def test_a_place_names_all_its_callers() -> None:
    outer = ".loc 1 8 3, function_name $L__info_string0, inlined_at 1 30 5"
    text = SMALL.replace("  .loc 2 9 1", f"  {outer}\n  .loc 2 9 1")
    _, inlined, *_ = parse(text)["scale"].instructions
    assert inlined.source == "inner.cuh:9, called from main.cu:8, called from main.cu:30"


def test_a_whole_kernel() -> None:
    p1, rd1 = Reg("%p1"), Reg("%rd1")
    store = "st.global.v2.f32"
    assert parse(SMALL) == {
        "scale": Kernel(
            name="scale",
            params=(
                Param("scale_param_0", "u64", 8, 8, 0),
                Param("scale_param_1", "u32", 4, 4, 8),
            ),
            registers={
                **{"%p0": "pred", "%p1": "pred", "%f0": "f32", "%f1": "f32"},
                **{"%rd0": "b64", "%rd1": "b64"},
            },
            shared=(),
            instructions=(
                Instruction(
                    "ld.param.u64",
                    ("ld", "param", "u64"),
                    (rd1, Memory(Symbol("scale_param_0"), 0, ())),
                    None,
                    False,
                    17,
                    ("main.cu", 7),
                    "ld.param.u64 %rd1, [scale_param_0]",
                ),
                Instruction(
                    store,
                    ("st", "global", "v2", "f32"),
                    (Memory(rd1, -16, ()), Vector((Reg("%f0"), Reg("%f1")))),
                    p1,
                    True,
                    20,
                    ("inner.cuh", 9),
                    "@!%p1 st.global.v2.f32 [%rd1+-16], {%f0, %f1}",
                    (("main.cu", 8),),
                ),
                Instruction(
                    "bra.uni",
                    ("bra", "uni"),
                    (Label("$L__BB0_1"),),
                    p1,
                    False,
                    22,
                    ("inner.cuh", 9),
                    "@%p1 bra.uni $L__BB0_1",
                    (("main.cu", 8),),
                ),
                Instruction(
                    "ret", ("ret",), (), None, False, 23, ("inner.cuh", 9), "ret", (("main.cu", 8),)
                ),
            ),
            labels={"$L__BB0_1": 1},
            max_threads=256,
            target="sm_90a",
            register_limit=128,
        )
    }


TWO_WAITS = """
{ .reg .pred P1;
WAIT: mbarrier.try_wait.parity.shared::cta.b64 P1, [%r1], %r2;
@P1 bra DONE; bra WAIT;
DONE: }
DONE:
{ .reg .pred P1; .reg .b32 %r1;
WAIT: mov.u32 %r1, 5; setp.eq.u32 P1, %r1, 5;
{ @P1 bra DONE; bra WAIT; }
}
mov.u32 %r1, %r2;
ret;"""


def test_scopes_keep_registers_and_labels_apart() -> None:
    kernel = body(TWO_WAITS)
    wait, leave, again, move, compare, leave_twice, again_twice, last, _ = kernel.instructions
    assert wait.parts == ("mbarrier", "try_wait", "parity", "shared::cta", "b64")
    first, second = wait.operands[0], compare.operands[0]
    assert isinstance(first, Reg)
    assert isinstance(second, Reg)
    assert first != second
    assert kernel.registers[first.name] == kernel.registers[second.name] == "pred"
    assert (leave.predicate, leave_twice.predicate) == (first, second)
    assert wait.operands[1] == Memory(Reg("%r1"), 0, ())
    assert move.operands[0] == compare.operands[1] != Reg("%r1")
    assert last.operands == (Reg("%r1"), Reg("%r2"))

    def index_of(instruction: Instruction) -> int:
        label = instruction.operands[0]
        assert isinstance(label, Label)
        return kernel.labels[label.name]

    assert [index_of(i) for i in (leave, again, leave_twice, again_twice)] == [3, 0, 3, 3]
    assert leave.operands != leave_twice.operands
    assert len(kernel.labels) == 4


def test_vector_registers() -> None:
    kernel = body(
        "\n.reg .v2 .f32 v; mov.v2.f32 v, {%f1, %f2}; mov.f32 %f3, v.y; mov.f32 v.r, %f3;"
    )
    x, y = Reg("v.x"), Reg("v.y")
    whole, read, write, _ = (instruction.operands for instruction in kernel.instructions)
    assert whole[0] == Vector((x, y))
    assert (read[1], write[0]) == (y, x)
    assert (kernel.registers["v.x"], kernel.registers["v.y"]) == ("f32", "f32")


def test_shared_variables_of_the_kernels_that_name_them() -> None:
    kernels = parse(
        """.shared .align 16 .b8 left[32]; .shared .f32 right[2][3];
        .extern .shared .align 128 .b8 dynamic[];
        .global .align 4 .u32 table[2][2] = {{1, 2}, {3, 4}}; .const .u32 one = 1, two = 2;
        .entry a { .reg .b64 %rd<2>; .shared .v4 .u32 own; .shared .u16 x, y;
          mov.u64 %rd0, left; mov.u64 %rd1, dynamic; mov.u64 %rd1, table; mov.u64 %rd1, own; ret; }
        .entry b { .reg .b64 %left; .reg .b32 %r; mov.u64 %left, two; ld.shared.u32 %r, [right+4]; }
        """
    )
    assert kernels["a"].shared == (
        Variable("left", 16, 32),
        Variable("dynamic", 128, None),
        Variable("own", 16, 16),
        Variable("x", 2, 2),
        Variable("y", 2, 2),
    )
    assert kernels["b"].shared == (Variable("right", 4, 24),)


TRITON = """
.version 8.4
.target sm_90a
.address_size 64
.extern .func  (.param .b32 func_retval0) vprintf(.param .b64 vprintf_param_0);
.extern .shared .align 16 .b8 global_smem[];
.global .align 1 .b8 _$_str[3] = {95, 95, 0};
.weak .func (.param .b32 r) helper(.param .b32 a) { .reg .b32 %r<2>; { ret; } }
.visible .entry add_kernel(
\t.param .u64 .ptr .global .align 1 add_kernel_param_0,
\t.param .u32 add_kernel_param_1
)
.reqntid 128
{
\t.reg .pred \t%p<2>;
\t.reg .b32 \t%r<9>;
\t.reg .b64 \t%rd<3>;
$L__func_begin0:
\t.loc\t1 8 0                           // add.py:8:0
\tld.param.u64 \t%rd1, [add_kernel_param_0];
$L__tmp0:
\t.loc\t1 12 30                         // add.py:12:30 @[ add.py:9:4 ]
\t// begin inline asm
\tmov.u32 %r1, 0x0;
\t@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
\t// end inline asm
\t.loc\t1 0 4
\t.pragma "nounroll";
\tcreatepolicy.fractional.L2::evict_first.b64 %rd2, 1.0;
\tret;
$L__func_end0:
}
\t.file\t1 "/src" "add.py"
\t.section\t.debug_abbrev
\t{
.b8 1                                   // Abbreviation Code
.b8 17
\t}
\t.section\t.debug_macinfo\t{\t}
"""


def test_triton_style() -> None:
    (kernel,) = parse(TRITON).values()
    assert [(i.opcode, i.location) for i in kernel.instructions] == [
        ("ld.param.u64", ("/src/add.py", 8)),
        ("mov.u32", ("/src/add.py", 12)),
        ("ld.global.v4.b32", ("/src/add.py", 12)),
        ("createpolicy.fractional.L2::evict_first.b64", None),
        ("ret", None),
    ]
    assert kernel.instructions[2].ptx_line == 25
    assert kernel.instructions[2].predicate == Reg("%p1")
    assert kernel.labels == {"$L__func_begin0": 0, "$L__tmp0": 1, "$L__func_end0": 5}


@pytest.mark.parametrize(
    ("text", "opcodes"),
    [
        ("\n", ["ret"]),
        ("\nbar.sync 0;", ["bar.sync", "ret"]),
        ("\n@%p1 bra END; exit; END:", ["bra", "exit", "ret"]),
        ("\nL: bra L;", ["bra"]),
    ],
)
def test_the_closing_brace_returns(text: str, opcodes: list[str]) -> None:
    assert [instruction.opcode for instruction in body(text).instructions] == opcodes


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("\nmov.u32 %r1, 1;\nadd.s32 %r1, %r1, %r77;", 6, "'%r77' is neither declared"),
        ("\nmov.u32 %r1, 1\nmov.u32 %r2, 2;", 5, "cannot read the operands"),
        ("\nret", 5, "no ';' ends 'ret'"),
        ("\n@%r1 bra L; L: ret;", 5, "'%r1' guards an instruction but is not a predicate"),
        ("\nret;\n\nbra NOWHERE;", 7, "there is no label 'NOWHERE'"),
        ("\n{ L: ret; } bra L;", 5, "there is no label 'L'"),
        ("\n{ .reg .b32 x; }\nmov.u32 %r1, x;", 6, "'x' is neither declared"),
        ("\nL: ret;\nL: ret;", 6, "the label L is there twice"),
        ("\n.reg .b32 %r5;", 5, "%r5 is declared twice"),
        ("\n.reg .b33 x;", 5, "unknown type .b33"),
        ("\n.reg .v3 .b32 x;", 5, "2 or 4 lanes, not 3"),
        ("\n.reg .b32 x[4];", 5, "a register is not an array"),
        ("\n.shared .b8 x[];", 5, "no size and is not .extern"),
        ("\n.shared .align 3 .b8 x[4];", 5, ".align 3 is not a power of two"),
        ("\n.surprise 4;", 5, "unknown directive '.surprise'"),
        ("\n.loc nowhere\nret;", 5, "cannot read '.loc nowhere'"),
        ("\nld.shared.u32 %r1, [%r2+%r3];", 5, "cannot read the address"),
        ("\nld.shared.u32 %r1, [%tid.x];", 5, "cannot be the base"),
        ("\nld.shared.u32 %r1, [%r2+1.5];", 5, "cannot read the address"),
        ("\nld.shared.u32 %r1, [%r2+x];", 5, "no whole number"),
        ("\nmov.u32 %r1, 0f3F8;", 5, "'0f3F8' is neither declared"),
        ("\nmov.u32 %r1, 09;", 5, "'09' is neither declared"),
        ("\nmov..u32 %r1, 0;", 5, "cannot read the opcode"),
        ("\nmov.u32 %r1, 0,;", 5, "cannot read the operands"),
        ("\nmov.u32 %r1, {%r2;", 5, "no ';' ends"),
        ("\n%r1 = 5;", 5, "cannot read the instruction"),
    ],
)
def test_malformed_bodies(text: str, line: int, message: str) -> None:
    with pytest.raises(PtxError, match=re.escape(message)) as error:
        body(text)
    assert error.value.line == line
    assert str(error.value).startswith(f"PTX line {line}: ")


def opcodes_by_search(ptx: str) -> Counter[str]:
    text = ptx[ptx.index(".entry") :].partition(".section")[0].replace("; ", ";\n")
    return Counter(re.findall(r"^\s*(?:@!?[%\w]+\s+)?([a-z][\w.:]*)[^:\n]*;", text, re.MULTILINE))


def ladder_ptx(rung: int, arch: str) -> str:
    return compiled_unit(unit_of(get_ladder()[rung - 1].config, arch=ARCHES[arch])).ptx


MAPS = [(128, 64, 128 * i) for i in range(4)]


@pytest.mark.parametrize(
    ("rung", "arch", "maps"),
    [(8, "sm_80", []), (16, "sm_120", []), (17, "sm_90", []), (20, "sm_90", MAPS)],
)
def test_instructions_of_the_ladder(rung: int, arch: str, maps: list[tuple[int, ...]]) -> None:
    (kernel,) = parse(ptx := ladder_ptx(rung, arch)).values()
    assert Counter(i.opcode for i in kernel.instructions) == opcodes_by_search(ptx)
    assert kernel.target == get_ladder()[rung - 1].config.target(ARCHES[arch])
    args = (len(bytes(ForwardKernelArgs())), 8, 128 * len(maps))
    assert [(p.size, p.align, p.offset) for p in kernel.params] == [*maps, args]
    lines = ptx.split("\n")
    for instruction in kernel.instructions:
        assert instruction.opcode in lines[instruction.ptx_line - 1]
    located = [i for i in kernel.instructions if i.opcode.startswith(("mma", "ldmatrix", "wgmma"))]
    assert located
    places = [i.location[0] for i in located if i.location is not None]
    assert len(places) == len(located)
    written_out = {
        i.opcode for i, place in zip(located, places, strict=True) if ".cuh" not in place
    }
    assert all(opcode.startswith("wgmma.mma_async") for opcode in written_out)


def test_instructions_of_a_warp_specialised_kernel() -> None:
    (kernel,) = parse(ladder_ptx(20, "sm_90")).values()
    waits = [i for i in kernel.instructions if i.parts[:2] == ("mbarrier", "try_wait")]
    predicates = {wait.operands[0] for wait in waits}
    assert len(predicates) == len(waits) > 2
    copies = [
        i for i in kernel.instructions if i.opcode.startswith("cp.async.bulk.tensor.4d.shared")
    ]
    assert copies
    assert all(isinstance(c.operands[1], Memory) and len(c.operands[1].coords) == 4 for c in copies)


def test_a_long_kernel_is_read_quickly() -> None:
    ptx = ladder_ptx(16, "sm_80")
    (kernel,) = parse(ptx).values()

    def seconds() -> float:
        start = time.process_time()
        list(parse(ptx).values())
        return time.process_time() - start

    assert min(seconds() for _ in range(5)) * 3000 / len(kernel.instructions) < 0.4
