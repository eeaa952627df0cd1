# SPDX-License-Identifier: Apache-2.0
"""The sm_80 kernels in NVRTC alone: it compiles, does not spill, and every switch is real."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from itertools import islice
from typing import Any

import pytest
import torch

from flash_attention.arch import ARCHES
from flash_attention.call.features import CAUSAL, PLAIN, Features, MaskKind
from flash_attention.call.problem import Problem
from flash_attention.choose.heuristic import select_config
from flash_attention.compile import CompiledKernel, compile_kernel, nvrtc_version
from flash_attention.compile.elf import text_section
from flash_attention.families.registry import unit_of
from flash_attention.families.sm80.forward.config import D_HEADS
from flash_attention.families.sm80.forward.features import Sm80Features
from flash_attention.families.sm80.forward.space import sample_configs
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    KernelConfig,
    parse_kernel_config,
)
from flash_attention.ladder import get_ladder
from flash_attention.launch.kernels import compile_config

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")

# Rungs whose machine code is that of the rung below, by NVRTC release and d_head. ptxas orders
# ldmatrix as it likes, so double-buffered reads change nothing; at d_head 64 a row is one panel.
KNOWN_NO_OPS = {("13.0", 128): {5}, ("13.0", 64): {5, 15}}


def compile_for(cfg: KernelConfig, arch: str) -> CompiledKernel:
    unit = unit_of(cfg, arch=ARCHES[arch])
    return compile_kernel(unit.source, arch=unit.target, name=unit.name)


def flash_ladder(dtype: DType, d_head: int) -> list[FlashForwardKernelConfig]:
    configs = (rung.config for rung in get_ladder(dtype, d_head))
    return [config for config in configs if isinstance(config, FlashForwardKernelConfig)]


exhaustive = pytest.mark.exhaustive
LADDERS = [
    pytest.param(*ladder, marks=exhaustive if place else ())
    for place, ladder in enumerate(
        [(arch, 128) for arch in TARGETS] + [(arch, 64) for arch in ("sm_80", "sm_90", "sm_120")]
    )
]


@pytest.mark.parametrize(("arch", "d_head"), LADDERS)
def test_the_ladder_compiles_without_spills_and_every_rung_is_new_code(
    arch: str, d_head: int
) -> None:
    kernels = [compile_for(config, arch) for config in flash_ladder(DType.FP16, d_head)]
    spills = {
        number: kernel.resources
        for number, kernel in enumerate(kernels, 1)
        if kernel.resources.spill_store_bytes or kernel.resources.stack_bytes
    }
    assert spills == {}
    code = [text_section(kernel.cubin) for kernel in kernels]
    same = {number for number in range(2, 17) if code[number - 1] == code[number - 2]}
    if (nvrtc_version(), d_head) not in KNOWN_NO_OPS:
        pytest.skip(f"no list of no-op rungs for NVRTC {nvrtc_version()}; here: {sorted(same)}")
    assert same == KNOWN_NO_OPS[nvrtc_version(), d_head]


@pytest.mark.parametrize("arch", TARGETS[1:])
def test_a_later_target_compiles_one_of_the_last_rungs_without_spills(arch: str) -> None:
    config = flash_ladder(DType.FP16, 128)[-TARGETS.index(arch)]
    assert compile_for(config, arch).resources.spill_store_bytes == 0, config.short_form()


@pytest.mark.parametrize(
    ("arch", "count"),
    [("sm_80", 2), *(pytest.param(a, 16, marks=exhaustive) for a in TARGETS[::3])],
)
def test_the_last_bf16_rungs_do_not_spill(arch: str, count: int) -> None:
    for config in flash_ladder(DType.BF16, 128)[-count:]:
        spilled = compile_for(config, arch).resources.spill_store_bytes
        assert spilled == 0, config.short_form()


@pytest.mark.parametrize("count", [1, pytest.param(10, marks=exhaustive)])
@pytest.mark.parametrize("arch", TARGETS)
def test_a_sample_of_all_valid_configs_compiles(arch: str, count: int) -> None:
    seed = TARGETS.index(arch)  # a target has configs of its own
    for cfg in islice(sample_configs(seed, ARCHES[arch], row_strides=(0, 2048)), count):
        ptx = compile_for(cfg, arch).ptx
        products = ptx.count("mma.sync")
        steps = (cfg.warp_rows // 16) * (cfg.B_c // 16) * (cfg.d_head // 8)
        assert products == 2 * steps * (2 if cfg.peel_first_block else 1), cfg.short_form()


THREE_REGISTERS = 12  # bytes: for sm_100 ptxas keeps to 168 registers, the others are in memory
PREDICATED = [
    Sm80Features(predicated=True),
    CAUSAL,
    Features(MaskKind.WINDOW, softcap=True, per_batch=True),
]


# Each for the first target, and everything at once for later ones. Features and targets take turns
# at the head dimensions.
LATER = ("sm_90", "sm_100", "sm_120")
PREDICATED_FOR = [
    pytest.param(
        *(arch, d_head, features),
        id=f"{arch}-{d_head}-{features.suffix}",
        marks=() if (arch, turn) in (("sm_80", place % 3), (LATER[place % 3], 0)) else exhaustive,
    )
    for place, d_head in enumerate(D_HEADS)
    for arch in ("sm_80", *LATER)
    for turn, features in enumerate(PREDICATED if arch == "sm_80" else PREDICATED[-1:])
]


@pytest.mark.parametrize(("arch", "d_head", "features"), PREDICATED_FOR)
def test_selected_kernels_with_guards_do_not_spill(
    arch: str, d_head: int, features: Features
) -> None:
    problem = Problem(1, 512, 512, 4, 4, d_head, d_head, torch.bfloat16, 0.1)
    everything = arch == "sm_80" and features == PREDICATED[-1]
    for seq_q in (64, 512) if everything else (512,):
        config = select_config(replace(problem, seq_q=seq_q), ARCHES["sm_80"])
        spilled = compile_config(config, ARCHES[arch], features).resources.spill_store_bytes
        assert spilled <= THREE_REGISTERS, config.short_form()


def test_guards_are_compiled_in_only_where_they_are_bound() -> None:
    config = flash_ladder(DType.FP16, 128)[14]
    plain, predicated = (
        compile_config(config, ARCHES["sm_80"], features).ptx for features in (PLAIN, PREDICATED[0])
    )
    zero_filled = re.compile(r"cp\.async\.cg\S+ \[%r\d+\], \[%rd\d+\], 16, %r\d+;")
    assert zero_filled.search(plain) is None
    copies = predicated.count("cp.async.cg")
    assert len(zero_filled.findall(predicated)) == copies == plain.count("cp.async.cg")


BASE = FlashForwardKernelConfig(DType.FP16, 64, 128, 64, 4, True, True, True, 2, 2, 2, False, True)
# Where BASE cannot show a field: a rule is in the way, or ptxas arrives at the same order of reads.
BASES = {
    "async_copy": "(FP16, 64, 128, 64, 4): async+swizzled+load_2_2_2_tiles",
    "V_mma_load_K_tiles": "(BF16, 128, 128, 64, 8): async+eager+swizzled+load_2_2_2_tiles"
    "+opt_softmax+serpentine+peeled+staged+panels",
    "mma_double_buffer_loads": "(BF16, 128, 128, 64, 8): async+eager+swizzled+load_2_2_2_tiles"
    "+opt_softmax+serpentine+peeled+staged+panels",
    "column_panels": "(FP16, 128, 128, 32, 4): async+eager+swizzled+load_2_2_2_tiles",
}
TOGGLES: dict[str, Any] = {
    "dtype": DType.BF16,
    "d_head": 128,
    "B_r": 64,
    "B_c": 32,
    "async_copy": False,
    "Q_mma_load_K_tiles": 0,
    "V_mma_load_K_tiles": 0,
    "mma_double_buffer_loads": True,
    "column_panels": True,
}


NO_OPS = set[int]().union(*KNOWN_NO_OPS.values())
SHOWN_BY_RUNGS = {rung.field for rung in get_ladder()[1:16] if rung.number not in NO_OPS}


def test_a_rung_or_a_toggle_shows_that_a_field_changes_machine_code() -> None:
    assert SHOWN_BY_RUNGS | TOGGLES.keys() == {f.name for f in fields(FlashForwardKernelConfig)}


@pytest.mark.parametrize("field", TOGGLES)
def test_the_fields_of_no_rung_change_machine_code(field: str) -> None:
    base = parse_kernel_config(BASES[field]) if field in BASES else BASE
    changed = replace(base, **{field: TOGGLES[field]})
    codes = [text_section(compile_for(cfg, "sm_90").cubin) for cfg in (base, changed)]
    assert codes[0] != codes[1]


def test_asynchronous_copies_and_their_absence_are_seen_in_the_ptx() -> None:
    lazy = replace(BASE, eager_load_blocks=False)
    assert "cp.async" in compile_for(lazy, "sm_90").ptx
    plain = compile_for(replace(lazy, async_copy=False), "sm_90").ptx
    assert "cp.async" not in plain
    assert "st.shared.v4" in plain


def test_cache_hints_and_staged_stores_are_seen_in_the_ptx() -> None:
    direct = compile_for(BASE, "sm_90").ptx
    assert "st.global.u32" in direct
    assert "L2::128B" not in direct
    staged = compile_for(replace(BASE, stage_output=True, cache_hints=True), "sm_90").ptx
    assert "st.global.L1::no_allocate.v4" in staged
    assert "cp.async.cg.shared.global.L2::128B" in staged
    assert "st.global.u32" not in staged
