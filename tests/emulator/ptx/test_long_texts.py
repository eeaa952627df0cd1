# SPDX-License-Identifier: Apache-2.0
"""The time that long texts take grows with their length alone."""

from __future__ import annotations

import time

import pytest

from ptx_emulator.program.program import Program
from ptx_emulator.ptx.parse import parse

LINES = 30_000
SECONDS = 3.0  # for a text that takes under one on a machine of two cores


def module(body: str) -> str:
    return f".version 8.0\n.target sm_80\n.entry k()\n{{\n.reg .b32 %r<100>;\n{body}ret;\n}}\n"


def additions(count: int, end: str) -> str:
    return "".join(f"add.s32 %r{i % 90 + 1}, %r{i * 7 % 90 + 1}, {i};{end}" for i in range(count))


TEXTS = {
    "instructions": module(additions(LINES, "\n")),
    "instructions and blank lines": module(additions(LINES // 2, "\n\n")),
    "blank lines in a kernel": module("\n" * LINES),
    "lines of spaces": module("  \t\n" * LINES),
    "comments": module("// a comment\n" * LINES),
    "blank lines before a kernel": "\n" * LINES + module(""),
    "blank lines behind a kernel": module("") + "\n" * LINES,
    "locations": module(".loc 1 7 3\nmov.u32 %r1, 0;\n" * (LINES // 2)),
}


@pytest.mark.parametrize("what", TEXTS)
def test_a_long_text_is_read_quickly(what: str) -> None:
    begin = time.process_time()
    (kernel,) = parse(TEXTS[what]).values()
    assert time.process_time() - begin < SECONDS
    assert kernel.instructions[-1].opcode == "ret"


def test_a_kernel_of_many_blocks_is_loaded_quickly() -> None:
    count = 3000
    labels = "".join(f"L{i}: add.s32 %r{i % 90 + 1}, %r1, {i};\n" for i in range(count))
    begin = time.process_time()
    (kernel,) = parse(module(labels)).values()
    program = Program(kernel)
    assert time.process_time() - begin < SECONDS
    assert len(program.blocks) == count
