# SPDX-License-Identifier: Apache-2.0
"""One instruction at a time, against NumPy or Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.emulator.snippets import STORE, run_body

RNG = np.random.default_rng(7)
WORDS = RNG.integers(0, 2**32, 128, dtype=np.uint32)
FLOATS = RNG.standard_normal(128).astype(np.float32)
A = "ld.global.u32 %r4, [%rd4];\n"
FA = "ld.global.f32 %f4, [%rd4];\n"
FSTORE = "st.global.f32 [%rd3], %f10;\n"


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("add.s32 %r10, %r4, -5;", WORDS - np.uint32(5)),
        ("sub.u32 %r10, 7, %r4;", np.uint32(7) - WORDS),
        ("mul.lo.s32 %r10, %r4, %r4;", WORDS * WORDS),
        ("mul.hi.u32 %r10, %r4, %r4;", (WORDS.astype(np.uint64) ** 2 >> 32).astype(np.uint32)),
        ("mad.lo.s32 %r10, %r4, 3, %r4;", WORDS * np.uint32(4)),
        ("and.b32 %r10, %r4, 255;", WORDS & 255),
        ("xor.b32 %r10, %r4, -1;", ~WORDS),
        ("not.b32 %r10, %r4;", ~WORDS),
        ("shl.b32 %r10, %r4, 40;", WORDS * 0),
        ("shr.s32 %r10, %r4, 3;", (WORDS.view(np.int32) >> 3).view(np.uint32)),
        ("shr.u32 %r10, %r4, 3;", WORDS >> 3),
        ("min.s32 %r10, %r4, 0;", np.minimum(WORDS.view(np.int32), 0).view(np.uint32)),
        ("max.u32 %r10, %r4, 5;", np.maximum(WORDS, 5)),
        ("neg.s32 %r10, %r4;", -WORDS),
        ("div.u32 %r10, %r4, 7;", WORDS // 7),
        ("rem.u32 %r10, %r4, 7;", WORDS % 7),
        ("popc.b32 %r10, %r4;", np.array([int(w).bit_count() for w in WORDS], np.uint32)),
        ("selp.b32 %r10, %r4, 17, %p9;", np.full(128, 17, np.uint32)),
        ("setp.lt.s32 %p1, %r4, 0; selp.u32 %r10, 1, 0, %p1;", WORDS >> 31),
        ("mov.b32 {%h1, %h2}, %r4; mov.b32 %r10, {%h2, %h1};", (WORDS << 16) | (WORDS >> 16)),
        ("cvt.u32.u16 %r10, %h9; add.u32 %r10, %r10, %r4;", WORDS),
        ("shfl.sync.bfly.b32 %r10, %r4, 3, 31, -1;", WORDS.reshape(-1, 32)[:, np.arange(32) ^ 3]),
        ("shfl.sync.idx.b32 %r10, %r4, 9, 31, -1;", np.repeat(WORDS[9::32], 32)),
        ("vote.sync.ballot.b32 %r10, %p9, -1;", WORDS * 0),
        ("redux.sync.add.s32 %r10, %r4, -1;", np.repeat(WORDS.reshape(-1, 32).sum(1), 32)),
    ],
)
def test_integer_instruction(instruction: str, expected: Any) -> None:
    setup = "setp.ne.u32 %p9, %r0, %r0;\nmov.b16 %h9, 0;\n"
    out, result = run_body(setup + A + instruction + "\n" + STORE, WORDS)
    assert np.array_equal(out, np.asarray(expected).reshape(-1).astype(np.uint32))
    assert result.findings == []


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("add.f32 %f10, %f4, 0f3F800000;", FLOATS + np.float32(1)),
        ("mul.rn.f32 %f10, %f4, %f4;", FLOATS * FLOATS),
        ("max.f32 %f10, %f4, 0f00000000;", np.maximum(FLOATS, 0)),
        ("neg.f32 %f10, %f4;", -FLOATS),
        ("abs.f32 %f10, %f4;", np.abs(FLOATS)),
        ("ex2.approx.ftz.f32 %f10, %f4;", np.exp2(FLOATS)),
        ("rcp.approx.ftz.f32 %f10, %f4;", np.float32(1) / FLOATS),
        ("div.full.ftz.f32 %f10, %f4, 0f40400000;", FLOATS / np.float32(3)),
        (
            "fma.rn.f32 %f10, %f4, %f4, %f4;",
            (FLOATS.astype(np.float64) ** 2 + FLOATS).astype(np.float32),
        ),
        (
            "cvt.rn.f16x2.f32 %r4, %f4, %f4; mov.b32 {%h1, %h2}, %r4; cvt.f32.f16 %f10, %h2;",
            FLOATS.astype(np.float16).astype(np.float32),
        ),
    ],
)
def test_float_instruction(instruction: str, expected: Any) -> None:
    out, _ = run_body(FA + instruction + "\n" + FSTORE, FLOATS.view(np.uint32), dtype=np.float32)
    assert np.array_equal(out, expected)


def test_unordered_comparisons_hold_for_nan() -> None:
    data = FLOATS.copy()
    data[::3] = np.nan
    body = FA + "setp.{} %p1, %f4, 0f00000000; selp.u32 %r10, 1, 0, %p1;\n" + STORE
    for comparison, expected in (
        ("lt.f32", data < 0),
        ("geu.f32", ~(data < 0)),
        ("ne.f32", (data < 0) | (data > 0)),
        ("neu.f32", data != 0),
        ("nan.f32", np.isnan(data)),
    ):
        out, _ = run_body(body.format(comparison), data.view(np.uint32))
        assert np.array_equal(out.astype(bool), expected), comparison


def test_registers_survive_aliasing_moves() -> None:
    """A move shares memory with its source until one of them is written."""
    body = (
        A
        + """
mov.u32 %r10, %r4;
mov.u32 %r11, %r4;
bar.sync 0;
add.u32 %r10, %r10, 1;
setp.lt.u32 %p1, %r0, 5;
@%p1 bra SKIP;
add.u32 %r11, %r11, 100;
SKIP:
add.u32 %r10, %r10, %r11;
sub.u32 %r10, %r10, %r4;
"""
        + STORE
    )
    out, _ = run_body(body, WORDS)
    thread = np.arange(128) % 64
    assert np.array_equal(out, WORDS + 1 + np.where(thread < 5, 0, 100).astype(np.uint32))
