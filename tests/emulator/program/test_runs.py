# SPDX-License-Identifier: Apache-2.0
"""What of a block runs as one: arithmetic moves, and what else there is keeps its order."""

from __future__ import annotations

import pytest

from flash_attention.arch import ARCHES
from flash_attention.ladder import get_ladder
from flash_attention.launch.kernels import compile_config
from ptx_emulator.program.blocks import Block, build_blocks, defines_and_uses
from ptx_emulator.program.runs import is_arithmetic, runs_of
from ptx_emulator.ptx.parse import parse

REGISTERS = ".reg .pred p; .reg .b32 a<9>; .reg .f32 f<9>; .reg .b64 x;"


def block_of(*lines: str) -> Block:
    text = "; ".join((*lines, "ret;"))
    (kernel,) = parse(f".entry k\n{{ {REGISTERS} {text} }}").values()
    (block,) = build_blocks(kernel)
    return block


def test_arithmetic_that_is_alike_runs_as_one() -> None:
    lines = (f"add.f32 f{i}, f{i}, f8; mul.f32 f{i}, f{i}, 0f40000000" for i in range(4))
    assert runs_of(block_of(*lines)) == [(0, 2, 4, 6), (1, 3, 5, 7), (8,)]


@pytest.mark.parametrize(
    "lines",
    [
        [f"add.f32 f{i + 1}, f{i}, f8" for i in range(4)],  # each needs the one before
        [f"add.f32 f{i}, f8, 0f{i}0000000" for i in range(4)],  # constants differ
        [f"@p add.f32 f{i}, f{i}, f8" for i in range(4)],
        [f"add.f32 f{i}, f{i}, f8" for i in range(2)],  # too few
    ],
)
def test_what_differs_runs_alone(lines: list[str]) -> None:
    assert {len(run) for run in runs_of(block_of(*lines))} == {1}


def test_loads_from_shared_memory_are_one_until_something_else_is_done_to_memory() -> None:
    block = block_of(
        "ld.shared.u32 a1, [a0]; add.u32 a5, a0, 64; ld.shared.u32 a2, [a5]",
        "st.shared.u32 [a0], a1; ld.shared.u32 a3, [a0]; ld.shared.u32 a4, [a3]",
    )
    assert runs_of(block) == [(1,), (0, 2), (3,), (4,), (5,), (6,)]


def test_volatile_loads_and_those_from_global_memory_run_alone() -> None:
    for space in ("volatile.shared", "global"):
        block = block_of(*(f"ld.{space}.u32 a{i}, [x]" for i in range(4)))
        assert {len(run) for run in runs_of(block)} == {1}


@pytest.mark.parametrize("rung", [1, 8, 16, 22, 29])
def test_every_instruction_runs_once_behind_all_that_it_needs(rung: int) -> None:
    config = get_ladder(n_heads=2)[rung - 1].config
    arch = ARCHES["sm_80" if rung <= 16 else "sm_90"]
    (kernel,) = parse(compile_config(config, arch).ptx).values()
    for block in build_blocks(kernel):
        runs = runs_of(block)
        order = [place for run in runs for place in run]
        assert sorted(order) == list(range(len(block.instructions)))
        when = {place: number for number, run in enumerate(runs) for place in run}
        writer: dict[str, int] = {}
        ordered = []
        for place, instruction in enumerate(block.instructions):
            defines, uses = defines_and_uses(instruction)
            assert all(when[writer[name]] < when[place] for name in uses if name in writer)
            writer.update(dict.fromkeys(defines, place))
            if not is_arithmetic(instruction) and instruction.parts[0] != "mma":
                ordered.append(place)
        assert ordered == sorted(ordered, key=order.index)
