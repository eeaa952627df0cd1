# SPDX-License-Identifier: Apache-2.0
"""Features: what they bind, and kernels with them on the emulator, held to the oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flash_attention import forward
from flash_attention.call.features import CAUSAL, PLAIN, Features, MaskKind, SplitKind
from flash_attention.compile.includes import include_closure
from flash_attention.compile.unit import translation_unit
from flash_attention.kernel_configs import (
    DType,
    HopperForwardKernelConfig,
    TileOrder,
)
from flash_attention.ladder import get_ladder
from flash_attention.launch.emulation import emulate
from tests.feature_cases import CASES, Case, emulated, selected

HOPPER = HopperForwardKernelConfig(
    *(DType.BF16, 64, 2, 128, 2),
    tma=True,
    specialised=True,
    tile_order=TileOrder.DYNAMIC,
    group_mib=4,
)


@pytest.mark.parametrize(
    ("features", "suffix"),
    [
        (PLAIN, ""),
        (CAUSAL, "_causal"),
        (Features(MaskKind.WINDOW), "_window"),
        (Features(softcap=True), "_softcap"),
        (Features(MaskKind.CAUSAL, softcap=True, per_batch=True), "_causal_softcap_per_batch"),
        (Features(sinks=True), "_sinks"),
        (Features(guarded=True), "_guarded"),
    ],
)
def test_a_kernel_is_named_after_its_features(features: Features, suffix: str) -> None:
    assert features.suffix == suffix


def test_a_translation_unit_binds_what_the_features_say_and_nothing_else() -> None:
    plain = translation_unit(HOPPER)
    for line in ("Mask = fa::attn::mask::Full;", "Score = fa::attn::score::Plain;"):
        assert f"using {line}" in plain
    assert "using TileOrder = fa::sm90::tile_order::Dynamic;" in plain
    all_at_once = translation_unit(HOPPER, Features(MaskKind.WINDOW, True, True))
    for line in (
        "Mask = fa::attn::mask::Window;",
        "Score = fa::attn::score::Softcap;",
        "Lengths = fa::attn::lengths::PerBatch;",
        "TileOrder = fa::sm90::tile_order::Packed;",
    ):
        assert all_at_once.count(f"using {line}") == 1
    assert all_at_once.count("using TileOrder") == 1
    added = set(include_closure(all_at_once)) - set(include_closure(plain))
    assert added == {
        "fa/attn/mask/window.cuh",
        "fa/attn/score/softcap.cuh",
        "fa/attn/lengths/per_batch.cuh",
        "fa/sm90/tile_order/packed.cuh",
    }


def test_parts_of_a_row_end_without_the_sink() -> None:
    sink, none = (f"using Sinks = fa::attn::sinks::{name};" for name in ("PerHead", "None"))
    assert none in translation_unit(HOPPER)
    for config in (HOPPER, get_ladder()[0].config):
        assert sink in translation_unit(config, Features(sinks=True))
    for splits in (SplitKind.CHUNKED, SplitKind.EVEN):
        assert none in translation_unit(HOPPER, Features(sinks=True, splits=splits))


def test_the_first_family_looks_at_bounds_only_where_it_has_to() -> None:
    config = get_ladder()[0].config
    plain = translation_unit(config)
    assert "using Bounds = fa::sm80::bounds::Exact;" in plain
    assert translation_unit(config, Features(softcap=True)).count("bounds::Exact;") == 1
    windows = Features(MaskKind.WINDOW, per_batch=True)
    others = (Features(guarded=True), Features(per_batch=True), Features(sinks=True))
    for features in (CAUSAL, windows, *others):
        assert translation_unit(config, features).count("bounds::Guarded;") == 1
    added = set(include_closure(translation_unit(config, windows))) - set(include_closure(plain))
    assert added == {
        "fa/attn/key_range.cuh",
        "fa/attn/lengths/per_batch.cuh",
        "fa/attn/lse.cuh",
        "fa/attn/mask/window.cuh",
        "fa/attn/online.cuh",
        "fa/attn/rows/one_head.cuh",
        "fa/sm80/bounds/guarded.cuh",
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_emulated_kernel_is_right(case: Case) -> None:
    call = case.make()
    result = emulated(call, selected(call))
    call.assert_right(result.output, result.lse)


@pytest.mark.parametrize("schedule", ["depth-first", "random"])
@pytest.mark.parametrize(
    "name", ["packed, causal, with sinks", "packed queries of a cache, everything at once"]
)
def test_the_order_of_the_warps_does_not_matter(name: str, schedule: str) -> None:
    (case,) = (case for case in CASES if case.name == name)
    call = case.make()
    first, second = (emulated(call, selected(call), order) for order in ("lockstep", schedule))
    assert torch.equal(first.output, second.output)
    assert first.lse is not None
    assert second.lse is not None
    assert torch.equal(first.lse, second.lse)


def test_the_last_group_of_heads_may_be_smaller() -> None:
    call = Case("", (200, 130), (100, 90), heads=3, heads_k=3).make()
    two_heads = {"max_seqlen_k": 2000}  # fit in a MiB, which the lengths themselves do not show
    arguments = call.arguments | two_heads
    config = replace(HOPPER, group_mib=1)
    result = emulate(config, call.q, call.k, call.v, return_lse=True, **arguments)
    assert list(map(str, result.findings)) == []
    call.assert_right(result.output, result.lse)


def test_a_kernel_without_a_producer_takes_sinks_and_fewer_columns() -> None:
    unified = HopperForwardKernelConfig(DType.BF16, 64, 1, 64, 1, tma=True)
    call = Case("", 100, 70, d_qk=40, d_v=24, heads=2, heads_k=1, causal=True, sinks=True).make()
    result = emulated(call, unified)
    call.assert_right(result.output, result.lse)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_given_output_of_other_columns_is_filled_and_nothing_beside_it(
    dtype: torch.dtype,
) -> None:
    call = Case("", (100, 30), (100, 40), d_qk=64, d_v=40, causal=True).make(dtype=dtype)
    room = torch.full((140, 6, 64), 7.0, dtype=dtype)
    inside = room[5:135, 1:5, 8:48]
    config = selected(call)
    assert forward(config, call.q, call.k, call.v, inside, **call.arguments) is inside
    call.assert_right(inside)
    inside.fill_(7.0)
    assert bool((room == 7.0).all())


def test_strides_of_packed_tensors_are_followed() -> None:
    call = Case("", (100, 30), (100, 40), causal=True).make()
    config = selected(call)
    expected = forward(config, call.q, call.k, call.v, **call.arguments)
    heads_first = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in (call.q, call.k, call.v)]
    assert torch.equal(forward(config, *heads_first, **call.arguments), expected)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("sinks", [False, True])
def test_without_a_key_the_lse_is_the_sink(sinks: bool) -> None:
    call = Case("", (10, 20), (0, 0), sinks=sinks).make()
    out, lse = forward(HOPPER, call.q, call.k, call.v, return_lse=True, **call.arguments)
    assert torch.equal(out, torch.zeros_like(call.q))
    call.assert_right(out, lse)
