# SPDX-License-Identifier: Apache-2.0
"""The loop over key blocks is found in every rung, and does what its config implies."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from flash_attention.call.features import CAUSAL, PLAIN, Features, MaskKind
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
)
from flash_attention.ladder import Rung, get_ladder
from flash_attention_workbench.inspect import sass
from flash_attention_workbench.inspect.inspection import inspect_config
from flash_attention_workbench.inspect.machine_loop import (
    MachineLoop,
    flow,
    shared_bytes,
    warp_flop,
)
from tests.gate import EXHAUSTIVE
from tests.hopper_configs import FIRST_CAUSAL_RUNG, hopper_ladder

pytestmark = pytest.mark.slow  # left out of `make quick`

# The kernels that tests of machine code compile too.
LADDER = [
    *(rung for rung in get_ladder() if isinstance(rung.config, FlashForwardKernelConfig)),
    *(rung for rung, _ in hopper_ladder(DType.FP16, 64)),
]


@pytest.fixture(autouse=True)
def _nvdisasm() -> None:
    try:
        sass.find_nvdisasm()
    except sass.InspectorMissing as missing:
        pytest.skip(str(missing))


@cache
def of_rung(number: int, features: Features = PLAIN) -> MachineLoop:
    """The loop of a rung that leaves no register in memory."""
    config = LADDER[number - 1].config
    inspection = inspect_config(config, config.default_arch, features)
    assert inspection.spills == 0
    return inspection.machine_loop()


def with_masks() -> list[Any]:
    """Every fourth rung, and with a causal mask those that it shows. Tests of machine code have the
    loops of all."""

    def in_every_run(number: int, causal: bool) -> bool:
        return number >= FIRST_CAUSAL_RUNG or (not causal and number % 4 == 1)

    return [
        pytest.param(
            *(rung, causal),
            id=f"{rung.number}-{causal}",
            marks=() if in_every_run(rung.number, causal) else EXHAUSTIVE,
        )
        for rung in LADDER
        for causal in (False, True)
        if not causal or isinstance(rung.config, HopperForwardKernelConfig)
    ]


@pytest.mark.parametrize(("rung", "causal"), with_masks())
def test_a_turn_of_every_rung_is_one_key_block(rung: Rung, causal: bool) -> None:
    machine = of_rung(rung.number, CAUSAL if causal else PLAIN)
    counts, config = sass.opcode_counts(machine.straight), rung.config
    assert machine.blocks_a_turn == 1
    assert machine.block.flop_per_byte == 128
    if isinstance(config, HopperForwardKernelConfig):
        steps = config.d_head // 16 + config.B_c // 16  # of 16 along the contraction
        assert (counts["HGMMA"], counts["HMMA"]) == (steps, 0)
    else:
        assert isinstance(config, FlashForwardKernelConfig)
        tiles = (config.warp_rows // 16) * (config.B_c // 8) * (config.d_head // 16)
        assert (counts["HMMA"], counts["HGMMA"]) == (2 * tiles, 0)
    scores = machine.block.rows * machine.block.keys // (32 * machine.block.warps)
    rows = machine.block.rows // machine.block.warps // 8  # of one lane
    rescales = getattr(config, "rescale_threshold", 0) == 0
    assert counts["MUFU"] == scores + (rows if rescales else 0)


def test_reads_of_the_first_family_by_hand() -> None:
    """K and V are 32 keys of 128: 16 reads of 4 matrices each, and Q as often as it is read."""
    before, after = (of_rung(number) for number in (6, 7))
    assert sass.opcode_counts(before.straight)["LDSM"] == 16 + 16 + 8
    assert sass.opcode_counts(after.straight)["LDSM"] == 16 + 16 + 16
    assert before.work().shared_bytes == 8 * 40 * 512
    assert after.work().shared_bytes == 4 * 48 * 512


def test_a_stale_maximum_takes_fewer_instructions() -> None:
    """Row maxima are a comparison a score, which unmasked blocks then do not take."""
    lazy, stale = (of_rung(number) for number in (25, 26))
    assert lazy.mix()["fp32"] - stale.mix()["fp32"] >= 64
    assert lazy.mix()["tensor core"] == stale.mix()["tensor core"] == 64 // 16 + 128 // 16


@pytest.mark.parametrize(
    ("opcode", "operands", "flop", "moved"),
    [
        ("HMMA.16816.F32.BF16", "R60, R24, R32, RZ", 2 * 16 * 8 * 16, 0),
        ("HMMA.1688.F32", "R60, R24, R32, RZ", 2 * 16 * 8 * 8, 0),
        ("HGMMA.64x128x16.F32", "R24, gdesc[UR8], R24", 2 * 64 * 128 * 16 / 4, (64 + 128) * 8),
        ("HGMMA.64x96x16.F32.BF16", "R24, R8, gdesc[UR8].tnspB, R24", 64 * 96 * 8, 96 * 8),
        ("LDSM.16.M88.4", "R76, [R219]", 0, 512),
        ("LDSM.16.MT88.2", "R76, [R219]", 0, 256),
        ("LDS.128", "R4, [R2]", 0, 512),
        ("STS", "[R2], R4", 0, 128),
        ("STSM.16.M88.4", "[R2], R4", 0, 512),
        ("FFMA", "R1, R2, R3, R4", 0, 0),
    ],
)
def test_what_one_instruction_does(opcode: str, operands: str, flop: int, moved: int) -> None:
    assert warp_flop(opcode) == flop
    assert shared_bytes(sass.Instruction(0, opcode, operands)) == moved


@pytest.mark.parametrize(
    ("opcode", "operands", "predicate", "falls"),
    [
        ("EXIT", "", "", False),
        ("EXIT", "", "P0", True),
        ("BRA", "`(.L_x_3)", "", False),
        ("BRA", "`(.L_x_3)", "!P0", True),
        ("BRA.DIV", "UR8, `(.L_x_3)", "", True),
        ("CALL.REL.NOINC", "`(.L_x_3)", "P0", True),
        ("RET.REL.NODEC", "R2 `(kernel)", "", False),
        ("FFMA", "R1, R2, R3, R4", "", True),
    ],
)
def test_what_comes_after_an_instruction(
    opcode: str, operands: str, predicate: str, falls: bool
) -> None:
    (line,) = flow([sass.Instruction(0, opcode, operands, predicate)])
    assert line.falls_through == falls


def test_blocks_inside_of_a_mask_are_counted_not_those_it_cuts() -> None:
    masks = (PLAIN, CAUSAL, Features(MaskKind.WINDOW))
    counts = [of_rung(26, mask).mix()["fp32"] for mask in masks]
    assert max(counts) - min(counts) < 8
