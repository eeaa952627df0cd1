# SPDX-License-Identifier: Apache-2.0
"""The Hopper family in NVRTC alone: what its inner loops hold, and that every switch is real."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest

from flash_attention.arch import ARCHES
from flash_attention.call.features import CAUSAL, Features
from flash_attention.compile import CompiledKernel
from flash_attention.compile.elf import text_section
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig
from flash_attention.launch.kernels import compile_config
from flash_attention_workbench.inspect.sass import InspectorMissing, find_nvdisasm, opcode_counts
from ptx_emulator.program.registers import registers_at_launch
from ptx_emulator.ptx.parse import parse
from tests.hopper_configs import (
    LADDERS,
    first_of_each_width,
    hopper_ladder,
    of_the_gate,
    selected,
)
from tests.kernels.machine_code import MachineCode

exhaustive = pytest.mark.exhaustive


OF_BF16, OF_FP16 = selected(DType.BF16), selected(DType.FP16, (4096,))
ALWAYS = first_of_each_width(OF_BF16) | {OF_FP16[1], OF_FP16[-2]}  # narrow and wide in FP16
SELECTED = [
    pytest.param(
        config,
        causal,
        id=f"{config.kernel_name()}{'_causal' * causal}",
        marks=() if (config, causal) in ALWAYS else exhaustive,
    )
    for config, causal in (*OF_BF16, *OF_FP16)
]
MOST_SPILLED = 64  # bytes; at the ends of a tile they cost nothing
MOST_ADDRESS_MOVES = 13  # R2UR; two a product have cost a tenth of the speed


def compiled(config: HopperForwardKernelConfig, causal: bool = False) -> CompiledKernel:
    return compile_config(config, ARCHES["sm_90"], CAUSAL if causal else Features())


@pytest.fixture
def nvdisasm() -> None:
    try:
        find_nvdisasm()
    except InspectorMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize(("config", "causal"), SELECTED)
def test_a_selected_kernel_compiles_without_remarks_and_hardly_spills(
    config: HopperForwardKernelConfig, causal: bool
) -> None:
    kernel = compiled(config, causal)
    resources = kernel.resources
    assert resources.notes == ()  # no serialised wgmma, no setmaxnreg ignored
    assert resources.spill_store_bytes <= MOST_SPILLED
    assert resources.registers * config.num_threads <= 65536
    (parsed,) = parse(kernel.ptx).values()
    emulated = registers_at_launch(parsed)
    assert emulated == (resources.registers if config.register_split[1] else None)


@pytest.mark.usefixtures("nvdisasm")
@pytest.mark.parametrize(("config", "causal"), SELECTED)
def test_the_inner_loop_of_a_selected_kernel_is_two_products_and_a_softmax(
    config: HopperForwardKernelConfig, causal: bool
) -> None:
    code = MachineCode.of(compiled(config, causal).cubin)
    # Over blocks that hide keys from some row, then over those that every row sees.
    masked, unmasked = map(opcode_counts, code.innermost_loops(holding="HGMMA"))
    assert masked["HGMMA"] == unmasked["HGMMA"] == config.d_head // 16 + config.B_c // 16
    assert masked["HMMA"] == 0
    assert (unmasked["HMMA"] > 0) == config.stale_max  # the scores once more
    # The scores computed again may want a register or two that are put aside.
    assert unmasked["STL"] <= 2 * (config.consumers == 3 and causal)
    assert unmasked["LDL"] <= 2 * causal
    assert unmasked["R2UR"] <= MOST_ADDRESS_MOVES
    exponentials = config.B_c // 2  # a lane's scores, twice where they may be computed again
    assert unmasked["MUFU"] == exponentials * (1 + config.stale_max) + 2  # and a factor a row

    pools = [i for i in code.instructions if i.name == "USETMAXREG"]
    given, taken = sorted(pools, key=lambda i: "DEALLOC" not in i.opcode)
    producer, consumer = config.register_split
    assert [int(i.operands.split()[-1], 16) for i in (given, taken)] == [producer, consumer]
    assert ("DEALLOC" in given.opcode, "TRY_ALLOC" in taken.opcode) == (True, True)


RUNGS = [
    pytest.param(
        *(below, config, causal),
        id=f"{dtype.name}-{d_head}-{rung.number}{'-causal' * causal}",
        marks=() if of_the_gate(rung, (dtype, d_head, causal)) else exhaustive,
    )
    for dtype, d_head, causal in LADDERS
    for (_, below), (rung, config) in pairwise(hopper_ladder(dtype, d_head))
]


@pytest.mark.parametrize(("below", "config", "causal"), RUNGS)
def test_every_rung_is_new_code_without_spills_or_remarks(
    below: HopperForwardKernelConfig, config: HopperForwardKernelConfig, causal: bool
) -> None:
    kernels = [compiled(each, causal) for each in (below, config)]
    for kernel in kernels:
        assert kernel.resources.notes == ()
        assert kernel.resources.spill_store_bytes == 0
    assert text_section(kernels[0].cubin) != text_section(kernels[1].cubin)


LADDER = hopper_ladder(DType.FP16, 64)
SHOWN_BY_RUNGS = {rung.field for rung, _ in LADDER[1:]}
PLAIN = LADDER[0][1]
TWO_CONSUMERS = replace(LADDER[-1][1], consumers=2, own_output=False)
ONE_CONSUMER = replace(TWO_CONSUMERS, consumers=1, ping_pong=False, stale_max=False)
TOGGLES: dict[str, tuple[HopperForwardKernelConfig, Any]] = {
    "dtype": (PLAIN, DType.BF16),
    "d_head": (PLAIN, 96),
    "consumers": (PLAIN, 1),
    "B_c": (PLAIN, 64),
    "group_mib": (LADDER[-1][1], 1),
    "direct_output": (TWO_CONSUMERS, True),
    "skip_empty": (LADDER[-1][1], True),
    "wide_panels": (replace(TWO_CONSUMERS, d_head=80, B_c=64, narrow_keys=0), True),
    "kv_8_bit": (TWO_CONSUMERS, True),
    "q_8_bit": (replace(TWO_CONSUMERS, kv_8_bit=True), True),
    "scores_8_bit": (replace(ONE_CONSUMER, kv_8_bit=True, q_8_bit=True), True),
}


def test_a_rung_or_a_toggle_shows_that_a_field_changes_machine_code() -> None:
    assert SHOWN_BY_RUNGS | TOGGLES.keys() == {f.name for f in fields(HopperForwardKernelConfig)}


@pytest.mark.parametrize("field", TOGGLES)
def test_the_fields_of_no_rung_change_machine_code(field: str) -> None:
    base, value = TOGGLES[field]
    codes = [text_section(compiled(cfg).cubin) for cfg in (base, replace(base, **{field: value}))]
    assert codes[0] != codes[1]


def test_the_mask_changes_machine_code() -> None:
    full, causal = (compiled(PLAIN, mask) for mask in (False, True))
    assert text_section(full.cubin) != text_section(causal.cubin)
