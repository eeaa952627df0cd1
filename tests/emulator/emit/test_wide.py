# SPDX-License-Identifier: Apache-2.0
"""Instructions that run as one give what each of them gives alone."""

from __future__ import annotations

import numpy as np
import pytest

from ptx_emulator import load_program
from ptx_emulator.program import layout
from ptx_emulator.program.runs import in_text_order, runs_of
from tests.emulator.snippets import STORE, kernel, run_body

COUNT = 4  # instructions of a run
# {r}, {f} and {d} are results of 32 bits, 32-bit floats and 64 bits; {a}, {b} and {c} are words,
# {x}, {y} and {z} floats that differ from instruction to instruction; %r9, %f9 are shared by all.
FORMS = [
    "add.f32 {f}, {x}, {y}",
    "add.ftz.f32 {f}, {x}, %f9",
    "sub.f32 {f}, %f9, {y}",
    "mul.f32 {f}, {x}, 0f3F000001",
    "mul.ftz.f32 {f}, {x}, {y}",
    "fma.rn.f32 {f}, {x}, {y}, {z}",
    "fma.rn.f32 {f}, {x}, %f9, {z}",
    "fma.rn.f32 {f}, %f9, {y}, %f9",
    "fma.rn.ftz.f32 {f}, {x}, {y}, {z}",
    "fma.rz.f32 {f}, {x}, {y}, {z}",
    "min.f32 {f}, {x}, {y}",
    "max.f32 {f}, {x}, %f9",
    "max.NaN.f32 {f}, {x}, {y}",
    "neg.f32 {f}, {x}",
    "abs.ftz.f32 {f}, {x}",
    "ex2.approx.ftz.f32 {f}, {x}",
    "lg2.approx.f32 {f}, {x}",
    "rcp.approx.ftz.f32 {f}, {x}",
    "rsqrt.approx.f32 {f}, {x}",
    "cvt.rn.f16x2.f32 {r}, {x}, {y}",
    "cvt.rn.bf16x2.f32 {r}, {x}, %f9",
    "cvt.rzi.s32.f32 {r}, {x}",
    "cvt.rn.f32.s32 {f}, {a}",
    "cvt.u64.u32 {d}, {a}",
    "add.s32 {r}, {a}, -7",
    "sub.s32 {r}, %r9, {b}",
    "mul.lo.s32 {r}, {a}, {b}",
    "mul.wide.u32 {d}, {a}, {b}",
    "mul.hi.u32 {r}, {a}, {b}",
    "mad.lo.s32 {r}, {a}, {b}, {c}",
    "mad.wide.s32 {d}, {a}, 12, %rd9",
    "min.s32 {r}, {a}, {b}",
    "max.u32 {r}, {a}, 77",
    "and.b32 {r}, {a}, {b}",
    "or.b32 {r}, {a}, 1",
    "xor.b32 {r}, %r9, {b}",
    "not.b32 {r}, {a}",
    "shl.b32 {r}, {a}, 3",
    "shl.b32 {r}, {a}, {b}",
    "shl.b32 {r}, %r9, {b}",
    "shr.s32 {r}, {a}, {b}",
    "shr.u32 {r}, {a}, 40",
    "add.f16x2 {r}, {a}, {b}",
    "fma.rn.f16x2 {r}, {a}, %r9, {c}",
    "mul.bf16x2 {r}, {a}, {b}",
    "max.f16x2 {r}, {a}, {b}",
    "setp.lt.f32 %p{i}, {x}, {y}; selp.b32 {r}, {a}, {b}, %p{i}",
    "setp.gtu.f32 %p{i}, {x}, 0f00000000; selp.f32 {f}, {x}, 0fFF800000, %p{i}",
    "setp.ne.and.s32 %p{i}, {a}, 5, %p9; selp.b32 {r}, 1, {b}, %p{i}",
    "setp.hi.u32 %p{i}, %r9, {b}; selp.b32 {r}, {a}, %r9, %p{i}",
]


def body_of(form: str) -> str:
    """The form several times, on words made of the thread's own, and all results as one."""
    lines = ["ld.global.u32 %r9, [%rd4];", "mov.b32 %f9, %r9;", "cvt.u64.u32 %rd9, %r9;"]
    lines += ["setp.lt.u32 %p9, %r9, 2147483648;", "mov.u32 %r10, 0;"]
    for i in range(COUNT):
        for place, bits in enumerate((0x1234567, 0x80400001, 0xFF)):
            name = 20 + 3 * i + place
            lines.append(f"xor.b32 %r{name}, %r9, {(bits * (i + 1)) % (1 << 32)};")
            lines.append(f"mov.b32 %f{name}, %r{name};")
    for i in range(COUNT):
        a, b, c = (f"%r{20 + 3 * i + place}" for place in range(3))
        x, y, z = (name.replace("r", "f") for name in (a, b, c))
        results = {"r": f"%r{40 + i}", "f": f"%f{40 + i}", "d": f"%rd{20 + i}"}
        lines.append(form.format(a=a, b=b, c=c, x=x, y=y, z=z, i=i, **results) + ";")
    for i in range(COUNT):
        if "{f}" in form:  # of NaN the emulator leaves the payload open
            lines.append(f"setp.nan.f32 %p8, %f{40 + i}, %f{40 + i}; mov.b32 %r11, %f{40 + i};")
            lines.append(f"selp.b32 %r{40 + i}, 2147483647, %r11, %p8;")
        if "{d}" in form:
            lines.append(f"xor.b64 %rd{20 + i}, %rd{20 + i}, %rd9; shr.u64 %rd8, %rd{20 + i}, 7;")
            lines.append(f"cvt.u32.u64 %r{40 + i}, %rd8;")
        lines.append(f"mad.lo.u32 %r10, %r10, 31, %r{40 + i};")
    return "\n".join(lines) + "\n" + STORE


@pytest.mark.parametrize("form", FORMS)
def test_a_run_gives_what_its_instructions_give(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    rng = np.random.default_rng(len(form))
    data = rng.integers(0, 1 << 32, 128, np.uint32)
    data[:16] = [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 1, 0x807FFFFF, 0x00800000] * 2
    load_program.cache_clear()
    together, _ = run_body(body_of(form), data)
    monkeypatch.setattr(layout, "runs_of", in_text_order)
    load_program.cache_clear()
    alone, _ = run_body(body_of(form), data)
    load_program.cache_clear()
    assert (together == alone).all()


@pytest.mark.parametrize("form", FORMS)
def test_the_instructions_are_a_run(form: str) -> None:
    (block,) = load_program(kernel(body_of(form))).blocks
    runs = {block.instructions[run[0]].opcode for run in runs_of(block) if len(run) == COUNT}
    assert (form.split()[0] in runs) == (".hi." not in form)
