# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from ptx_emulator.program.blocks import build_blocks
from ptx_emulator.program.loops import loop_nests
from ptx_emulator.ptx.parse import parse
from tests.emulator.snippets import kernel


def nests_by_label(body: str) -> dict[str, tuple[int, ...]]:
    """Nest of the block at each label, headers as label numbers would be: by block index."""
    (parsed,) = parse(kernel(body)).values()
    blocks = build_blocks(parsed)
    start = {block.start: block.index for block in blocks}
    nests = loop_nests(blocks)
    return {label: nests[start[at]] for label, at in parsed.labels.items()}


def test_nested_loops_and_what_follows_them() -> None:
    nests = nests_by_label(
        """
OUTER:
add.u32 %r4, %r4, 1;
INNER:
add.u32 %r5, %r5, 1;
setp.lt.u32 %p1, %r5, 10;
@%p1 bra INNER;
LATCH:
setp.lt.u32 %p2, %r4, 10;
@%p2 bra OUTER;
AFTER:
mov.u32 %r6, 0;
"""
    )
    (outer,) = nests["OUTER"]
    assert nests["LATCH"] == (outer,)
    assert nests["INNER"][0] == outer
    assert len(nests["INNER"]) == 2
    assert nests["AFTER"] == ()


def test_a_branch_is_no_loop() -> None:
    nests = nests_by_label(
        """
setp.lt.u32 %p1, %r0, 10;
@%p1 bra LEFT;
add.u32 %r4, %r4, 1;
bra JOIN;
LEFT:
add.u32 %r4, %r4, 2;
JOIN:
mov.u32 %r6, 0;
"""
    )
    assert nests == {"LEFT": (), "JOIN": ()}


def test_a_loop_with_two_ways_back_is_one_loop() -> None:
    nests = nests_by_label(
        """
HEAD:
setp.lt.u32 %p1, %r0, 10;
@%p1 bra SHORT;
LONG:
add.u32 %r4, %r4, 1;
setp.lt.u32 %p2, %r4, 10;
@%p2 bra HEAD;
bra AFTER;
SHORT:
add.u32 %r4, %r4, 2;
setp.lt.u32 %p3, %r4, 10;
@%p3 bra HEAD;
AFTER:
mov.u32 %r6, 0;
"""
    )
    assert nests["HEAD"] == nests["LONG"] == nests["SHORT"]
    assert len(nests["HEAD"]) == 1
    assert nests["AFTER"] == ()
