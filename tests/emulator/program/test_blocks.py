# SPDX-License-Identifier: Apache-2.0
"""Blocks, what they define and use, and what lives between them, on examples worked by hand."""

from __future__ import annotations

import pytest

from flash_attention.arch import ARCHES
from flash_attention.ladder import get_ladder
from flash_attention.launch.kernels import compile_config
from ptx_emulator.errors import PtxError
from ptx_emulator.program.blocks import Block, build_blocks, defines_and_uses
from ptx_emulator.ptx.model import Kernel
from ptx_emulator.ptx.parse import parse


def kernel_of(text: str) -> Kernel:
    registers = ".reg .pred p, q; .reg .b32 a, b, c, d, e, f; .reg .b64 x, y;"
    (kernel,) = parse(f".func g() {{ ret; }} .entry k\n{{ {registers} {text} }}").values()
    return kernel


def blocks_of(text: str) -> list[Block]:
    return build_blocks(kernel_of(text))


@pytest.mark.parametrize(
    ("instruction", "defines", "uses"),
    [
        ("add.s32 a, b, c", "a", "bc"),
        ("add.s32 a, a, 1", "a", "a"),
        ("@p add.s32 a, b, c", "a", "abcp"),
        ("setp.lt.s32 p|q, a, b", "pq", "ab"),
        ("selp.b32 a, b, c, !p", "a", "bcp"),
        ("mov.b64 {a, b}, x", "ab", "x"),
        ("ld.global.v2.b32 {a, _}, [x+8]", "a", "x"),
        ("st.shared.v2.b32 [a], {b, c}", "", "abc"),
        ("stmatrix.sync.aligned.m8n8.x1.shared.b16 [a], {b}", "", "ab"),
        ("red.global.add.u32 [x], a", "", "ax"),
        ("atom.global.add.u32 a, [x], b", "a", "bx"),
        ("shfl.sync.bfly.b32 a|p, b, c, 31, -1", "ap", "bc"),
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {a, b}, [c]", "ab", "c"),
        ("cp.async.cg.shared.global [a], [x], 16, b", "", "abx"),
        ("cp.async.wait_group 1", "", ""),
        ("cp.async.bulk.tensor.2d.shared::cluster.global [a], [x, {b, c}], [d]", "", "abcdx"),
        ("bar.sync a, b", "", "ab"),
        ("bar.red.popc.u32 a, 0, p", "", "p"),
        ("bar.warp.sync a", "", "a"),
        ("mbarrier.init.shared::cta.b64 [a], b", "", "ab"),
        ("mbarrier.arrive.shared::cta.b64 _, [a]", "", "a"),
        ("mbarrier.arrive.shared::cta.b64 x, [a]", "x", "a"),
        ("mbarrier.try_wait.parity.shared::cta.b64 p, [a], b", "p", "ab"),
        (
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {a,b}, {c,d}, x, p,1,1",
            "ab",
            "abcdxp",
        ),
        ("wgmma.wait_group.sync.aligned 0", "", ""),
        ("elect.sync _|p, -1", "p", ""),
        ("nanosleep.u32 a", "", "a"),
        ("prefetch.global.L2 [x]", "", "x"),
        ("bra L", "", ""),
    ],
)
def test_defines_and_uses(instruction: str, defines: str, uses: str) -> None:
    parsed = kernel_of(f"L: {instruction}; ret;").instructions[0]
    assert defines_and_uses(parsed) == (set(defines), set(uses))


def test_terminators_and_edges() -> None:
    blocks = blocks_of(
        """
        mov.b32 a, 0; bar.arrive 1, 64; bar.warp.sync -1; barrier.cta.arrive 1, 64;
        bar.sync 0;
        barrier.cta.red.popc.u32 b, 0, p;
        HEAD: mbarrier.try_wait.parity.shared::cta.b64 p, [a], b;
        @p bra DONE;
        bra HEAD;
        DONE: add.s32 a, a, 1;
        BOTH: @q exit;
        @q bra BOTH;
        ret;"""
    )
    assert [(b.start, len(b.instructions), b.terminator, b.next, b.target) for b in blocks] == [
        (0, 5, "barrier", 1, None),
        (5, 1, "barrier", 2, None),
        (6, 1, "fall", 3, None),  # the result of the vote
        (7, 1, "mbarrier_wait", 4, None),
        (8, 1, "branch", 5, 6),
        (9, 1, "jump", None, 3),
        (10, 1, "fall", 7, None),
        (11, 1, "branch_return", 8, None),
        (12, 1, "branch", 9, 7),
        (13, 1, "return", None, None),
    ]
    assert [b.index for b in blocks] == list(range(10))
    edges = [b.successors for b in blocks]
    assert edges == [(1,), (2,), (3,), (4,), (5, 6), (3,), (7,), (8,), (9, 7), ()]


def test_a_branch_to_what_follows_has_one_successor() -> None:
    blocks = blocks_of("@p bra L; L: ret;")
    assert (blocks[0].next, blocks[0].target, blocks[0].successors) == (1, 1, (1,))


def test_live_registers_around_a_loop() -> None:
    blocks = blocks_of(
        """
        mov.b32 a, 0; mov.b32 b, 1; mov.b32 f, 2;
        LOOP: add.s32 c, a, b; mov.b32 a, c; mov.b32 d, f; setp.lt.s32 p, a, 9;
        @p bra LOOP;
        @q mov.b32 e, c; st.global.b32 [x], e; st.global.b32 [x], d; ret;"""
    )
    before, loop, after = blocks
    assert before.defines == set("abf")
    assert (before.live_in, before.live_out) == (frozenset("xqe"), frozenset("abfxqe"))
    assert loop.defines == set("acdp")
    assert (loop.live_in, loop.live_out) == (frozenset("abfxqe"), frozenset("abcdfxqe"))
    assert after.defines == {"e"}
    assert (after.live_in, after.live_out) == (frozenset("cdxqe"), frozenset())


def test_live_registers_of_two_arms() -> None:
    start, left, right, join = blocks_of(
        "@p bra R; mov.b32 a, b; bra J; R: mov.b32 a, c; J: st.global.b32 [x], a; ret;"
    )
    assert start.live_in == set("pbcx")
    assert (left.live_in, left.live_out) == (frozenset("bx"), frozenset("ax"))
    assert (right.live_in, right.live_out) == (frozenset("cx"), frozenset("ax"))
    assert join.live_in == set("ax")


def test_a_table_of_branches_is_followed_index_by_index() -> None:
    first, second, *arms = blocks_of(
        "T: .branchtargets L, M, N; brx.idx a, T; L: mov.b32 b, c; M: mov.b32 b, d; N: ret;"
    )
    assert [block.terminator for block in (first, second)] == ["branch", "branch"]
    assert (first.target, first.next) == (3, 1)
    assert (second.target, second.next) == (4, 2)
    assert (arms[0].terminator, arms[0].target) == ("jump", 5)


def test_a_table_that_is_not_there_is_refused() -> None:
    with pytest.raises(PtxError, match="no table 'T'") as error:
        blocks_of("brx.idx a, T; L: ret;")
    assert error.value.line == 2


def test_a_real_kernel_needs_nothing_at_its_start() -> None:
    ptx = compile_config(get_ladder()[7].config, ARCHES["sm_120"]).ptx
    (kernel,) = parse(ptx).values()
    blocks = build_blocks(kernel)
    assert blocks[0].live_in == set()
    assert sum(len(b.instructions) for b in blocks) == len(kernel.instructions)
    for block in blocks:
        known: set[str] = set(block.live_in)
        for instruction in block.instructions:
            defines, uses = defines_and_uses(instruction)
            assert uses <= known
            known |= defines
        assert block.live_out <= known
