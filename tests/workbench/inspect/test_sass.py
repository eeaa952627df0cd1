# SPDX-License-Identifier: Apache-2.0
"""Machine code of real cubins, read with nvdisasm and counted."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

from flash_attention.compile.elf import text_section
from flash_attention.compile.nvrtc import compile_source, options
from flash_attention.errors import UnsupportedError
from flash_attention_workbench.inspect import sass

PRINTED = """\
	.target	sm_90
//--------------------- .text.other               --------------------------
	.section	.text.other,"ax",@progbits
other:
        /*0000*/                   EXIT ;
//--------------------- .text.flash_forward_kernel --------------------------
	.section	.text.flash_forward_kernel,"ax",@progbits
	.sectioninfo	@"SHI_REGISTERS=32"
flash_forward_kernel:
.text.flash_forward_kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   IMAD.MOV.U32 R3, RZ, RZ, 0x4 ;
        /*0020*/              @!P0 BRA `(.L_x_0) ;
        /*0030*/              @UP1 UIADD3 UR4, UR4, 0x1, URZ ;
        /*0040*/              @!PT LDS RZ, [RZ] ;
        /*0050*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
.L_x_0:
        /*1_0060*/
        /*0060*/                   NOP ;
        /*0070*/                   EXIT ;
.L_x_1:
        /*0080*/                   BRA `(.L_x_1);
        /*0090*/                   NOP;
        /*00a0*/                   NOP;
.L_x_2:
"""

TENSOR_CORE = """\
extern "C" __global__ void flash_forward_kernel(float* out, unsigned* in) {
  __shared__ unsigned tile[256];
  unsigned a[4], b[2], address;
  for (int i = threadIdx.x; i < 256; i += 32) tile[i] = in[i];
  __syncthreads();
  asm("{.reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t;}" : "=r"(address) : "l"(tile));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(address + threadIdx.x * 16));
  b[0] = in[threadIdx.x];
  b[1] = in[threadIdx.x + 32];
  float c[4] = {};
  for (int i = 0; i < 3; i++)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(c[0]));
  out[threadIdx.x] = c[0] + c[1] * c[2] + c[3];
}
"""


@pytest.fixture(scope="module")
def cubin() -> bytes:
    try:
        sass.find_nvdisasm()
    except sass.InspectorMissing as missing:
        pytest.skip(str(missing))
    return compile_source(TENSOR_CORE, source_name="kernel.cu", arguments=options("sm_80")).cubin


def test_real_kernel_has_the_instructions_it_asked_for(cubin: bytes) -> None:
    instructions = sass.disassemble(cubin)
    counts = sass.opcode_counts(instructions)
    assert (counts["HMMA"], counts["LDSM"], counts["MUFU"], counts["BAR"]) == (3, 1, 1, 1)
    assert {i.opcode for i in instructions if i.name == "HMMA"} == {"HMMA.16816.F32"}
    mix = sass.instruction_mix(counts)
    assert mix["tensor core"] == 3
    assert mix["special function"] == 1
    assert mix["shared read"] == 1
    assert mix["shared write"] >= 1
    assert mix["global"] >= 4
    assert mix["local memory"] == mix["other"] == 0
    assert sum(mix.values()) == len(instructions)


def test_every_instruction_of_the_section_is_listed(cubin: bytes) -> None:
    instructions = sass.disassemble(cubin)
    assert [i.address for i in instructions] == list(range(0, 16 * len(instructions), 16))
    padding = len(text_section(cubin)) // 16 - len(instructions)
    assert 0 <= padding < 16
    assert instructions[-1].name == "BRA"


def test_predicates_operands_and_labels_are_told_apart() -> None:
    assert sass.parse_disassembly(PRINTED, "flash_forward_kernel") == [
        sass.Instruction(0x00, "LDC", "R1, c[0x0][0x28]"),
        sass.Instruction(0x10, "IMAD.MOV.U32", "R3, RZ, RZ, 0x4"),
        sass.Instruction(0x20, "BRA", "`(.L_x_0)", "!P0", 0x60),
        sass.Instruction(0x30, "UIADD3", "UR4, UR4, 0x1, URZ", "UP1"),
        sass.Instruction(0x40, "LDS", "RZ, [RZ]", "!PT"),
        sass.Instruction(0x50, "HGMMA.64x128x16.F32.BF16", "R24, gdesc[UR8], R24, gsb0"),
        sass.Instruction(0x60, "NOP", ""),
        sass.Instruction(0x70, "EXIT", ""),
        sass.Instruction(0x80, "BRA", "`(.L_x_1)", target=0x80),
    ]
    assert sass.parse_disassembly(PRINTED) == sass.parse_disassembly(PRINTED, "other")
    assert sass.parse_disassembly(PRINTED, "other") == [sass.Instruction(0, "EXIT", "")]


def test_modifiers_do_not_split_counts() -> None:
    opcodes = ["HMMA.16816.F32", "HMMA.16816.F32.BF16", "IMAD.WIDE", "IMAD.MOV.U32", "MOV"]
    instructions = [sass.Instruction(16 * i, opcode, "") for i, opcode in enumerate(opcodes)]
    counts = sass.opcode_counts(instructions)
    assert counts == Counter({"HMMA": 2, "IMAD": 1, "IMAD.MOV": 1, "MOV": 1})
    mix = {name: count for name, count in sass.instruction_mix(counts).items() if count}
    assert mix == {"tensor core": 2, "integer": 1, "move": 2}


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        ("HGMMA", "tensor core"),
        ("LDGSTS", "async copy"),
        ("UTMALDG", "async copy"),
        ("STS", "shared write"),
        ("STL", "local memory"),
        ("FMNMX", "fp32"),
        ("UIADD3", "integer"),
        ("ULDC", "move"),
        ("F2FP", "convert"),
        ("WARPGROUP", "control"),
        ("NEVERHEARDOF", "other"),
    ],
)
def test_class_of_an_opcode(opcode: str, expected: str) -> None:
    assert sass.instruction_mix({opcode: 7})[expected] == 7


def test_unreadable_input_is_refused(cubin: bytes) -> None:
    with pytest.raises(UnsupportedError, match="cannot read this cubin of 100 bytes"):
        sass.disassemble(cubin[:100])
    with pytest.raises(UnsupportedError, match="no instruction of kernel 'absent'"):
        sass.disassemble(cubin, "absent")


def test_nvdisasm_on_path_is_the_second_choice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    advice = r"pip install 'flash-attention-jit\[inspect\]'"
    with pytest.raises(sass.InspectorMissing, match=advice):
        sass.find_nvdisasm()
    program = tmp_path / "nvdisasm"
    program.touch(mode=0o755)
    assert sass.find_nvdisasm() == str(program)
