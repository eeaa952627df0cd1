# SPDX-License-Identifier: Apache-2.0
"""Where parameters lie in their block, and what directives say of registers."""

from __future__ import annotations

import pytest

from ptx_emulator.ptx.parse import parse


def test_parameters_are_laid_out_in_one_block() -> None:
    (kernel,) = parse(
        """.weak .entry k(.param .u8 a, .param .align 64 .b8 b[128], .param .f32 c,
        .param .u64 .ptr .global .align 16 d, .param .u64 .ptr e, .param .align 8 .b8 f[12],
        .param .u16 g) .reqntid 96 .pragma "nounroll"; { ret; }"""
    ).values()
    assert [(p.name, p.type, p.size, p.align, p.offset) for p in kernel.params] == [
        ("a", "u8", 1, 1, 0),
        ("b", "b8", 128, 64, 64),
        ("c", "f32", 4, 4, 192),
        ("d", "u64", 8, 8, 200),
        ("e", "u64", 8, 8, 208),
        ("f", "b8", 12, 8, 216),
        ("g", "u16", 2, 2, 228),
    ]
    assert (kernel.max_threads, kernel.target) == (96, "")


@pytest.mark.parametrize(
    ("directives", "registers"),
    [
        ("", None),
        (".maxntid 384, 1, 1", None),
        (".minnctapersm 1", None),
        (".maxntid 384, 1, 1 .minnctapersm 1", 168),
        (".maxntid 128, 2, 1 .minnctapersm 2", 128),
        (".reqntid 512 .minnctapersm 1", 128),
        (".maxntid 96 .minnctapersm 7", 80),  # 21 warps count as 24
        (".maxnreg 100", 104),
        (".maxntid 256 .minnctapersm 1 .maxnreg 200", 200),
        (".maxntid 1024 .minnctapersm 2 .maxnreg 200", 32),
    ],
)
def test_directives_limit_the_registers_of_a_thread(directives: str, registers: int | None) -> None:
    (kernel,) = parse(f".visible .entry k() {directives} {{ ret; }}").values()
    assert kernel.register_limit == registers
