# SPDX-License-Identifier: Apache-2.0
"""The sm_80 rungs: within tolerance, nothing found, exactly the expected counts."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from flash_attention.arch import ARCHES
from flash_attention.kernel_configs import DType, FlashForwardKernelConfig
from flash_attention.ladder import get_ladder
from flash_attention.launch.emulate import emulate
from flash_attention.launch.emulation import Emulation
from flash_attention.launch.kernels import compile_config
from flash_attention.reference.judge import Judge, generate_qkv
from ptx_emulator import SCHEDULES
from ptx_emulator.machine.launch.counters import SharedSite
from tests.gate import EXHAUSTIVE, in_turn, one_in

SEQ, HEADS = 256, 2
NUMBERS = range(1, 17)
DTYPES = [pytest.param(dtype, id=dtype.name) for dtype in DType]
FIRST_SWIZZLED, FIRST_STAGED = 2, 11


@cache
def problem(
    dtype: DType, d_head: int, seq_len: int, heads: int
) -> tuple[tuple[Tensor, Tensor, Tensor], Judge]:
    qkv = generate_qkv(1, seq_len, heads, d_head, dtype)
    return qkv, Judge(*qkv)


def config_of(number: int, dtype: DType, d_head: int, heads: int) -> FlashForwardKernelConfig:
    config = get_ladder(dtype, d_head, heads)[number - 1].config
    assert isinstance(config, FlashForwardKernelConfig)
    return config


def run_clean(
    number: int,
    dtype: DType = DType.FP16,
    d_head: int = 128,
    seq_len: int = SEQ,
    heads: int = HEADS,
    *,
    arch: str = "sm_80",
    schedule: str = "lockstep",
    seed: int = 0,
) -> Emulation:
    """Emulate a rung; it must be right, and nothing may be found."""
    qkv, judge = problem(dtype, d_head, seq_len, heads)
    config = config_of(number, dtype, d_head, heads)
    emulation = emulate(config, *qkv, arch=arch, schedule=schedule, seed=seed)
    assert list(map(str, emulation.findings)) == []
    check = judge.check(emulation.output)
    assert check.ok, str(check)
    return emulation


# FP16 is what the tests of machine code compile.
EVERY_RUNG = [
    pytest.param(
        *(dtype, number),
        id=f"{dtype.name}-{number}",
        marks=() if dtype is DType.FP16 or number >= 15 else EXHAUSTIVE,
    )
    for dtype in DType
    for number in NUMBERS
]


@pytest.mark.parametrize(("dtype", "number"), EVERY_RUNG)
def test_every_rung_is_right_and_clean(schedule: str, dtype: DType, number: int) -> None:
    run_clean(number, dtype, schedule=schedule, seed=number)


@pytest.mark.parametrize(("number", "dtype"), in_turn([1, 6, 7, 11, 16], [*DType]))
def test_narrow_heads(number: int, dtype: DType) -> None:
    run_clean(number, dtype, d_head=64)


@pytest.mark.parametrize("arch", one_in(2, ["sm_90", "sm_100", "sm_120"]))
def test_the_dialects_of_newer_architectures(arch: str) -> None:
    ptx = compile_config(config_of(16, DType.FP16, 128, HEADS), ARCHES[arch]).ptx
    assert f".target {arch}" in ptx
    assert (".reg .f32" in ptx) == (arch == "sm_90")  # later ones have untyped registers
    run_clean(16, arch=arch)


def test_three_seeds_of_the_random_schedule_agree() -> None:
    outputs = [run_clean(9, schedule="random", seed=seed).output for seed in range(3)]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@cache
def counted(number: int) -> Emulation:
    return run_clean(number)


def shared_by_opcode(number: int) -> dict[str, SharedSite]:
    """Shared-memory sites summed up by the first word of their opcode, ldmatrix by form."""
    counts: dict[str, SharedSite] = {}
    for site in counted(number).counters.to_dict()["shared"]:
        opcode = str(site["opcode"])
        key = "ldmatrix.trans" if ".trans" in opcode else opcode.partition(".")[0]
        total = counts.setdefault(key, SharedSite())
        total.requests += site["requests"]
        total.wavefronts += site["wavefronts"]
        total.ideal += site["ideal"]
    return counts


CTAS = SEQ // 128 * HEADS
KEY_BLOCKS = SEQ // 32
PER_MATRIX = 4  # ldmatrix.x4: four phases of 128 bytes


def ldmatrix_wavefronts(number: int) -> tuple[int, int]:
    """What ldmatrix needs without conflicts: reads of Q and K, and of V, counted by hand."""
    config = config_of(number, DType.FP16, 128, HEADS)
    steps, rows = config.d_head // 16, config.warp_rows // 16
    once_a_block = CTAS * config.n_warps * KEY_BLOCKS * PER_MATRIX
    q, k = rows * steps, config.B_c // 16 * steps
    return once_a_block * (q + k), once_a_block * k


@pytest.mark.parametrize("number", NUMBERS)
def test_bank_conflicts_are_eightfold_without_the_swizzle_and_none_with_it(number: int) -> None:
    sites = shared_by_opcode(number)
    normal, transposed = ldmatrix_wavefronts(number)
    ways = 1 if number >= FIRST_SWIZZLED else 8
    assert (sites["ldmatrix"].ideal, sites["ldmatrix.trans"].ideal) == (normal, transposed)
    assert sites["ldmatrix"].wavefronts == ways * normal
    assert sites["ldmatrix.trans"].wavefronts == ways * transposed
    others = [site for name, site in sites.items() if not name.startswith("ldmatrix")]
    assert [site.wavefronts for site in others] == [site.ideal for site in others]
    assert ("st" in sites) == (number >= FIRST_STAGED)


@pytest.mark.parametrize("number", NUMBERS)
def test_global_memory_is_moved_once_in_full_sectors_when_staged(number: int) -> None:
    counters = counted(number).counters
    tensor = SEQ * HEADS * 128 * 2
    reads_of_k_and_v = 2 * SEQ // 128
    assert counters.bytes_loaded == tensor * (1 + reads_of_k_and_v)
    assert counters.bytes_stored == tensor
    stores = [s for s in counters.to_dict()["global"] if str(s["opcode"]).startswith("st.")]
    sectors, requests = (sum(s[key] for s in stores) for key in ("sectors", "requests"))
    # A direct store writes half a sector of eight rows; a staged one 512 bytes of whole rows.
    assert sectors == requests * (16 if number >= FIRST_STAGED else 8)
    assert sectors * 32 == tensor * (1 if number >= FIRST_STAGED else 2)


@pytest.mark.parametrize("number", NUMBERS)
def test_tensor_core_work_is_that_of_two_products(number: int) -> None:
    products = counted(number).counters.instructions
    mma = sum(count for opcode, count in products.items() if opcode.startswith("mma."))
    assert mma * 2 * 16 * 8 * 16 == 4 * HEADS * SEQ * SEQ * 128


def test_counts_do_not_depend_on_the_schedule() -> None:
    lockstep = counted(16).counters.to_dict()
    for schedule in SCHEDULES[1:]:
        assert run_clean(16, schedule=schedule, seed=5).counters.to_dict() == lockstep
