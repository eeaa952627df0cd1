# SPDX-License-Identifier: Apache-2.0
"""Registers of unfinished wgmma: hand-written sequences, and a real kernel without a wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from flash_attention.families.registry import unit_of
from flash_attention.launch.emulation import compiled_unit
from ptx_emulator.errors import PtxError
from ptx_emulator.program.blocks import build_blocks
from ptx_emulator.program.inflight import registers_in_flight
from ptx_emulator.ptx.parse import parse
from tests.emulator.edits import compiler, edited_headers
from tests.emulator.hopper_mutations import LAST, UNAWAITED_SCORES, UNCOMMITTED_SCORES
from tests.emulator.planting import Mutation

REGISTERS = ".reg .pred p; .reg .b32 a0, a1, b0, b1, s0, s1, t0, t1, z; .reg .b64 x, y;"
ISSUE = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned"


def found(text: str) -> list[tuple[int, str, int]]:
    (kernel,) = parse(f".entry k {{ {REGISTERS} {text} ret; }}").values()
    return registers_in_flight(kernel, build_blocks(kernel))


def test_a_read_before_the_wait_and_after_it() -> None:
    text = f"{ISSUE} {{s0,s1}}, x, y, p,1,1; {COMMIT} mov.b32 z, s0; {WAIT} 0; mov.b32 z, s1;"
    assert found(text) == [(2, "s0", 0)]


def test_a_write_before_the_wait() -> None:
    assert found(f"{ISSUE} {{s0,s1}}, x, y, p,1,1; {COMMIT} mov.b32 s1, 0; {WAIT} 0;") == [
        (2, "s1", 0)
    ]


def test_a_group_that_was_never_committed_is_not_waited_for() -> None:
    assert found(f"{ISSUE} {{s0,s1}}, x, y, p,1,1; {WAIT} 0; mov.b32 z, s0;") == [(2, "s0", 0)]


def test_waiting_for_all_groups_but_the_last() -> None:
    issue = f"{ISSUE} {{s0,s1}}, x, y, p,1,1; {COMMIT} {ISSUE} {{t0,t1}}, x, y, p,1,1; {COMMIT}"
    assert found(f"{issue} {WAIT} 1; mov.b32 z, s0; mov.b32 z, t0;") == [(6, "t0", 2)]
    assert found(f"{issue} {WAIT} 2; mov.b32 z, s0; mov.b32 z, t0;") == [
        (5, "s0", 0),
        (6, "t0", 2),
    ]


def test_fragments_of_a_belong_to_the_wgmma_too() -> None:
    issue = f"{ISSUE} {{s0,s1}}, {{a0,a1}}, y, p,1,1; {COMMIT}"
    assert found(f"{issue} mov.b32 a1, 0; {WAIT} 0; mov.b32 a0, 0;") == [(2, "a1", 0)]
    assert found(f"{issue} {ISSUE} {{t0,t1}}, {{a0,a1}}, x, p,1,1;") == []
    assert found(f"{issue} {ISSUE} {{t0,t1}}, {{s0,s1}}, x, p,1,1;") == [
        (2, "s0", 0),
        (2, "s1", 0),
    ]
    assert found(f"{issue} {ISSUE} {{a0,t1}}, x, y, p,1,1;") == [(2, "a0", 0)]


def test_one_accumulator_for_many_wgmma_of_one_shape() -> None:
    issue = f"{ISSUE} {{s0,s1}}, x, y, p,1,1;"
    assert found(f"{issue} {issue} {COMMIT} {issue} {COMMIT} {WAIT} 0; mov.b32 z, s0;") == []
    other = issue.replace("m64n8k16", "m64n16k16")
    assert found(f"{issue} {COMMIT} {other}") == [(2, "s0", 0), (2, "s1", 0)]


def test_what_one_path_leaves_in_flight_stays_so_after_the_join() -> None:
    text = f"{ISSUE} {{s0,s1}}, x, y, p,1,1; {COMMIT} @p bra J; {WAIT} 0; J: mov.b32 z, s0;"
    assert found(text) == [(4, "s0", 0)]


def test_the_path_with_the_fewest_groups_decides() -> None:
    issue = f"{ISSUE} {{s0,s1}}, x, y, p,1,1; {COMMIT}"
    more = f"{ISSUE} {{t0,t1}}, x, y, p,1,1; {COMMIT}"
    read = f"{WAIT} 1; mov.b32 z, s0;"
    assert found(f"{issue} @p bra J; {more} J: {read}") == [(6, "s0", 0)]
    assert found(f"{issue} @!p bra M; bra J; M: {more} J: {read}") == [(7, "s0", 0)]
    assert found(f"{issue} {more} @p bra J; {more} J: {read}") == []


def test_a_wait_that_some_warps_skip_is_no_wait() -> None:
    text = f"{ISSUE} {{s0,s1}}, x, y, p,1,1; {COMMIT} @p {WAIT} 0; mov.b32 z, s0;"
    assert found(text) == [(3, "s0", 0)]


def test_what_a_loop_carries_round() -> None:
    loop = f"L: mov.b32 z, s0; {ISSUE} {{s0,s1}}, x, y, p,1,1; {COMMIT} %s @p bra L; {WAIT} 0;"
    assert found(loop % "") == [(0, "s0", 1)]
    assert found(loop % f"{WAIT} 1;") == [(0, "s0", 1)]
    assert found(loop % f"{WAIT} 0;") == []


@pytest.mark.parametrize("text", [f"{ISSUE};", f"{ISSUE} {{s0,s1}};", f"{WAIT};"])
def test_operands_that_are_not_there(text: str) -> None:
    with pytest.raises(PtxError, match="lacks operands"):
        found(text)


def test_a_real_kernel_touches_nothing_in_flight() -> None:
    (kernel,) = parse(compiled_unit(unit_of(LAST.config)).ptx).values()
    assert registers_in_flight(kernel, build_blocks(kernel)) == []


@pytest.mark.parametrize("mistake", [UNAWAITED_SCORES, UNCOMMITTED_SCORES], ids=lambda m: m.name)
def test_a_real_kernel_that_does_not_wait_for_its_scores(mistake: Mutation, tmp_path: Path) -> None:
    mutated = compiler(edited_headers(mistake.edits, tmp_path))(unit_of(mistake.scene.config))
    (kernel,) = parse(mutated.ptx).values()
    touched = registers_in_flight(kernel, build_blocks(kernel))
    assert len({register for _, register, _ in touched}) >= 32
    for index, register, issued in touched:
        wgmma, use = kernel.instructions[issued], kernel.instructions[index]
        assert wgmma.parts[:2] == ("wgmma", "mma_async")
        assert register in wgmma.text
        assert register in use.text
        assert wgmma.ptx_line < use.ptx_line
