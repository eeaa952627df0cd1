# SPDX-License-Identifier: Apache-2.0
"""Every kind of operand against the exact model it stands for."""

from __future__ import annotations

import struct

import pytest

from ptx_emulator.ptx.model import (
    Imm,
    Memory,
    Negated,
    Operand,
    Pair,
    Reg,
    Sink,
    Special,
    Symbol,
    Vector,
)
from ptx_emulator.ptx.operands import read_constant, read_operands

DECLARED: dict[str, Operand] = {
    **{f"%{kind}{i}": Reg(f"%{kind}{i}") for kind in ("p", "rs", "r", "rd") for i in range(9)},
    **{name: Symbol(name) for name in ("tile", "k_param_0")},
}


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("mov.u32 %r1, %tid.x", (Reg("%r1"), Special("tid.x"))),
        ("mov.u32 %r1, %lanemask_lt", (Reg("%r1"), Special("lanemask_lt"))),
        ("mov.u64 %rd1, tile", (Reg("%rd1"), Symbol("tile"))),
        ("mov.b64 %rd1, k_param_0", (Reg("%rd1"), Symbol("k_param_0"))),
        ("mov.b32 {%rs1,_}, %r1", (Vector((Reg("%rs1"), Sink())), Reg("%r1"))),
        ("elect.sync _|%p1, -1", (Pair(Sink(), Reg("%p1")), Imm(-1, "int"))),
        ("setp.eq.s32 %p1 | %p2, %r1, %r2", (Pair(Reg("%p1"), Reg("%p2")), Reg("%r1"), Reg("%r2"))),
        ("and.pred %p1, %p2, !%p3", (Reg("%p1"), Reg("%p2"), Negated(Reg("%p3")))),
        ("ld.shared.u32 %r1, [tile+4]", (Reg("%r1"), Memory(Symbol("tile"), 4, ()))),
        ("ld.shared.u32 %r1, [ %r2 + 0 ]", (Reg("%r1"), Memory(Reg("%r2"), 0, ()))),
        ("ld.shared.u32 %r1, [%r2-8]", (Reg("%r1"), Memory(Reg("%r2"), -8, ()))),
        ("ld.shared.u32 %r1, [%r2+0x10]", (Reg("%r1"), Memory(Reg("%r2"), 16, ()))),
        ("prefetch.global.L2 [%rd1]", (Memory(Reg("%rd1"), 0, ()),)),
        ("bar.sync 0", (Imm(0, "int"),)),
        ("wgmma.fence.sync.aligned", ()),
        (
            "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
            "[%r1], [%rd1, {%r2, %r3, %r4}], [%r5+8]",
            (
                Memory(Reg("%r1"), 0, ()),
                Memory(Reg("%rd1"), 0, (Reg("%r2"), Reg("%r3"), Reg("%r4"))),
                Memory(Reg("%r5"), 8, ()),
            ),
        ),
    ],
)
def test_operands(instruction: str, expected: tuple[Operand, ...]) -> None:
    assert read_operands(instruction.partition(" ")[2], DECLARED, 1) == expected


def double_bits(value: float) -> int:
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    assert isinstance(bits, int)
    return bits


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("0", Imm(0, "int")),
        ("-17", Imm(-17, "int")),
        ("4294967295U", Imm(4294967295, "int")),
        ("0xFFFFFFFF", Imm(0xFFFFFFFF, "int")),
        ("-0x10", Imm(-16, "int")),
        ("0b101", Imm(5, "int")),
        ("017", Imm(15, "int")),
        ("0f3F800000", Imm(0x3F800000, "f32")),
        ("0dBFF0000000000000", Imm(0xBFF0000000000000, "f64")),
        ("1.5", Imm(double_bits(1.5), "f64")),
        ("-2e-3", Imm(double_bits(-2e-3), "f64")),
        ("WARP_SZ", Imm(32, "int")),
    ],
)
def test_constants(token: str, expected: Imm) -> None:
    assert read_operands(token, {}, 1) == (expected,)
    assert read_constant(token) == expected
