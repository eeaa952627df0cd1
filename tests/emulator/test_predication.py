# SPDX-License-Identifier: Apache-2.0
"""The sm_80 kernels beyond plain attention, emulated: right, nothing found, mistakes caught."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
import torch

from flash_attention import forward
from flash_attention.families.sm80.forward.space import sample_configs
from flash_attention.kernel_configs import DType, FlashForwardKernelConfig
from flash_attention.ladder import get_ladder
from flash_attention.launch.emulate import emulate
from flash_attention.launch.plan import Plan
from flash_attention.reference.judge import generate_qkv
from ptx_emulator import SCHEDULES
from tests.devices import of_dtypes, ran
from tests.emulator.edits import Edit, plant
from tests.feature_cases import CASES, LONG, Case, MadeCase, emulated, selected
from tests.gate import in_turn, one_in, third_of_features

PREDICATION, ROWS = "sm80/predication.cuh", "sm80/rows.cuh"
CACHE = next(case for case in CASES if case.name == "packed queries of a cache, everything at once")
KEYLESS = next(case for case in CASES if case.name == "sinks of rows without a key")
KEYLESS_TILES = Case("tiles without a key", 400, 90, causal=True, sinks=True)
NARROW = [case for case in CASES if max(case.d_qk, case.d_v) <= 128]


def rung(number: int, case: Case, dtype: DType = DType.BF16) -> FlashForwardKernelConfig:
    """A rung that is wide enough for the case."""
    d_head = 64 if max(case.d_qk, case.d_v) <= 64 else 128
    config = get_ladder(dtype, d_head, case.heads)[number - 1].config
    assert isinstance(config, FlashForwardKernelConfig)
    return config


@pytest.mark.parametrize(
    ("case", "dtype", "device"), of_dtypes(third_of_features(0), LONG, mark=pytest.mark.gpu)
)
def test_the_kernel_that_sm_80_gets_is_right(case: Case, dtype: torch.dtype, device: str) -> None:
    made = case.make(device, dtype)
    config = selected(made, "sm_80")
    assert isinstance(config, FlashForwardKernelConfig)
    poisoned = made.q.new_full((*made.q.shape[:-1], made.v.shape[-1]), torch.nan)
    call = made.call(out=poisoned, return_lse=True)
    made.assert_right(*ran(Plan(call, config), call))


# Every case, every other rung but the last, whose row stride does not suit fewer heads of k and v.
RUNGS_AND_CASES = [
    pytest.param(
        *(number, case),
        id=f"{number}-{case.name}",
        marks=() if place < 15 and place % 2 == 0 else pytest.mark.exhaustive,
    )
    for place, (number, case) in enumerate(
        zip(cycle(range(1, 16)), (*NARROW, *NARROW[:7]), strict=False)
    )
]


@pytest.mark.parametrize(("number", "case"), RUNGS_AND_CASES)
def test_every_rung_is_right(number: int, case: Case) -> None:
    call = case.make(dtype=torch.float16)
    result = emulated(call, rung(number, case, DType.FP16))
    call.assert_right(result.output, result.lse)


def test_a_static_stride_takes_other_lengths() -> None:
    case = Case("", 100, 140, d_qk=128, d_v=128, heads=2, heads_k=2, causal=True, sinks=True)
    call = case.make()
    result = emulated(call, rung(16, case))
    call.assert_right(result.output, result.lse)


@pytest.mark.parametrize("number", [1, 3, 10, 15])
def test_a_tile_that_sees_no_key_at_all(number: int) -> None:
    call = KEYLESS_TILES.make()
    result = emulated(call, rung(number, KEYLESS_TILES))
    call.assert_right(result.output, result.lse)


@pytest.mark.parametrize("case", [CACHE, KEYLESS], ids=lambda case: case.name)
def test_copies_through_registers_guard_too(case: Case) -> None:
    call = case.make()
    result = emulated(call, replace(rung(2, case), async_copy=False))
    call.assert_right(result.output, result.lse)


@pytest.mark.parametrize(
    ("number", "name"), in_turn([2, 9, 15], [case.name for case in (CACHE, KEYLESS)])
)
def test_the_order_of_the_warps_does_not_matter(number: int, name: str) -> None:
    case = CACHE if name == CACHE.name else KEYLESS
    call = case.make()
    first, *others = (emulated(call, rung(number, case), order) for order in SCHEDULES)
    call.assert_right(first.output, first.lse)
    assert first.lse is not None
    used = call.q.shape[-3] - case.padding
    for other in others:
        assert other.lse is not None
        assert torch.equal(other.output[..., :used, :, :], first.output[..., :used, :, :])
        assert torch.equal(other.lse, first.lse)


@pytest.mark.parametrize("arch", one_in(3, ["sm_100", "sm_90", "sm_120"]))
def test_the_dialects_of_newer_architectures(arch: str) -> None:
    call = CACHE.make()
    config = selected(call, "sm_80")
    tensors = (call.q, call.k, call.v)
    result = emulate(config, *tensors, return_lse=True, arch=arch, **call.arguments)
    assert list(map(str, result.findings)) == []
    call.assert_right(result.output, result.lse)


@pytest.mark.parametrize(
    "number",
    one_in(3, range(8)),
)
def test_random_configs_of_every_head_dimension(number: int) -> None:
    d_head = (64, 128, 192, 256)[number % 4]
    configs = (c for c in sample_configs(80 + number) if c.d_head == d_head and c.B_c <= 64)
    config = next(configs)
    columns = (d_head - 8, d_head - 24)
    case = Case("", 150, 200, *columns, 2, 1, window=(30, 5), softcap=5.0, sinks=True)
    call = case.make(dtype=config.dtype.to_torch_dtype())
    result = emulated(call, config)
    call.assert_right(result.output, result.lse)


@pytest.mark.parametrize("d_head", [192, 256])
def test_wide_heads_without_guards(d_head: int) -> None:
    config = rung(15, CACHE)
    call = Case("", 128, 96, d_head, d_head, heads=2, heads_k=2).make()
    wide = replace(config, d_head=d_head, n_warps=8)
    for wide_config in (wide, replace(wide, stage_output=False, folded_addresses=False)):
        result = emulate(wide_config, call.q, call.k, call.v)
        assert list(map(str, result.findings)) == []
        call.assert_right(result.output)


@pytest.mark.parametrize("number", [10, 15])
def test_a_given_output_of_other_columns_is_filled_and_nothing_beside_it(number: int) -> None:
    call = Case("", (100, 30), (100, 40), d_qk=64, d_v=40, causal=True).make()
    room = torch.full((140, 6, 64), 7.0, dtype=torch.bfloat16)
    inside = room[5:135, 1:5, 8:48]
    config = rung(number, call.case)
    assert forward(config, call.q, call.k, call.v, inside, **call.arguments) is inside
    call.assert_right(inside)
    inside.fill_(7.0)
    assert bool((room == 7.0).all())


def test_strides_are_followed() -> None:
    call = Case("", 100, 130, causal=True, batch=2).make()
    config = rung(15, call.case)
    expected = forward(config, call.q, call.k, call.v, **call.arguments)
    heads_first = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (call.q, call.k, call.v)]
    assert torch.equal(forward(config, *heads_first, **call.arguments), expected)


@pytest.mark.usefixtures("no_compile")
def test_without_a_key_nothing_is_compiled() -> None:
    call = Case("", (10, 20), (0, 0), sinks=True).make()
    config = rung(1, call.case)
    out, lse = forward(config, call.q, call.k, call.v, return_lse=True, **call.arguments)
    assert torch.equal(out, torch.zeros_like(call.q))
    call.assert_right(out, lse)


def test_exact_tiles_give_the_same_bits_with_and_without_guards() -> None:
    q, k, v = generate_qkv(1, 256, 2, 64, DType.FP16)
    config = rung(15, NARROW[0], DType.FP16)
    bare = forward(config, q, k, v)
    predicated, _ = forward(config, q, k, v, return_lse=True)
    assert torch.equal(bare, predicated)


LENGTHS_AND_COLUMNS = Case("", 100, 130, 40, 40, sinks=True, heads=2)
HEADS = Case("", 64, 64, heads=2, heads_k=1)
MUTATIONS = [
    (ROWS, "row < rows && ", "", LENGTHS_AND_COLUMNS, "global-out-of-bounds"),
    (ROWS, " && chunk * kChunkElements < columns", "", LENGTHS_AND_COLUMNS, "global-out-of-bounds"),
    (PREDICATION, "range_.hides(key / Config::kBC)", "false", LENGTHS_AND_COLUMNS, "numbers"),
    (PREDICATION, "blockIdx.y / args.heads_per_kv", "blockIdx.y", HEADS, "global-out-of-bounds"),
    (PREDICATION, "first_block_, 1)", "first_block_, 0)", KEYLESS_TILES, "global-out-of-bounds"),
    (
        PREDICATION,
        "Config::Sinks::add(end, args_, blockIdx.y);",
        "",
        LENGTHS_AND_COLUMNS,
        "numbers",
    ),
    (ROWS, "(before + row)", "row", CACHE, "numbers"),
    (
        PREDICATION,
        "lane_row < sequence_.q_len",
        "true",
        LENGTHS_AND_COLUMNS,
        "global-out-of-bounds",
    ),
]


@pytest.mark.parametrize(
    ("header", "old", "new", "case", "caught_by"),
    [
        pytest.param(*m, id=m[1], marks=() if place in (0, 2) else pytest.mark.mutations)
        for place, m in enumerate(MUTATIONS)
    ],
)
def test_a_guard_left_out_is_caught(
    header: str,
    old: str,
    new: str,
    case: Case,
    caught_by: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant([Edit(header, old, new)], tmp_path, monkeypatch)
    assert caught_by in caught(case.make())


def caught(call: MadeCase) -> set[str]:
    """What gave a mistake away."""
    config = rung(15, call.case)
    result = emulate(config, call.q, call.k, call.v, return_lse=True, **call.arguments)
    kinds = {finding.kind for finding in result.findings}
    try:
        call.assert_right(result.output.nan_to_num(nan=torch.inf), result.lse)
    except AssertionError:
        kinds.add("numbers")
    return kinds
