# SPDX-License-Identifier: Apache-2.0
"""Features of Hopper kernels: what is refused, what they bind, and what they compute emulated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention import forward
from flash_attention.arch import ARCHES
from flash_attention.call.features import CAUSAL, PLAIN, Features, MaskKind
from flash_attention.compile.includes import include_closure
from flash_attention.errors import UnsupportedError
from flash_attention.families.registry import unit_of
from flash_attention.families.sm90.forward.features import (
    Sm90Features,
    SplitKind,
    Walk,
    resolve,
)
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig, TileOrder
from flash_attention.launch.emulate import emulate
from flash_attention.launch.plan import Plan
from tests.devices import of_dtypes, ran
from tests.feature_cases import CASES, Case, emulated, selected
from tests.gate import in_turn, third_of_features

pytestmark = pytest.mark.slow  # left out of `make quick`

ONE_EACH = HopperForwardKernelConfig(*(DType.BF16, 64, 2, 128, 2), tma=True, specialised=True)
HOPPER = replace(ONE_EACH, tile_order=TileOrder.DYNAMIC, group_mib=4)
PERSISTENT = replace(ONE_EACH, tile_order=TileOrder.PERSISTENT)
UNIFIED = HopperForwardKernelConfig(DType.BF16, 64, 2, 128, 1, tma=True)
PER_BATCH = Features(per_batch=True)
FIXED = Sm90Features(decode=True, splits=SplitKind.FIXED)


def refused(message: str) -> Any:
    return pytest.raises(UnsupportedError, match=message)


@pytest.mark.parametrize(
    ("features", "suffix"),
    [
        (Sm90Features(), ""),
        (Sm90Features(MaskKind.CAUSAL, sinks=True), "_causal_sinks"),
        (Sm90Features(per_batch=True, heads_together=4), "_per_batch_heads_4"),
        (Sm90Features(heads_together=4, decode=True), "_heads_4_decode"),
        (FIXED, "_fixed"),
        (Sm90Features(page_keys=16, decode=True, splits=SplitKind.EVEN), "_page_16_even"),
    ],
)
def test_a_kernel_is_named_after_its_features(features: Sm90Features, suffix: str) -> None:
    assert features.suffix == suffix


@pytest.mark.parametrize(
    ("features", "asked"),
    [
        (CAUSAL, "causal=True is asked for"),
        (Features(MaskKind.WINDOW), "a window is asked for"),
        (Features(softcap=True), "softcap is asked for"),
        (PER_BATCH, "a length of its own for every sequence is asked for"),
        (Features(MaskKind.WINDOW, True, True), "a window, softcap, a length .* are asked for"),
        (Features(per_batch=True, page_keys=64), "a length .*, block_table are asked for"),
    ],
)
def test_kernels_without_a_producer_know_a_causal_mask_at_most(
    features: Features, asked: str
) -> None:
    assert resolve(HOPPER, features).words() == features.words()
    if features == CAUSAL:
        assert resolve(UNIFIED, features) == Sm90Features(MaskKind.CAUSAL)
    else:
        with refused(f"^{asked}, and Hopper kernels without a producer .* with specialised=True"):
            resolve(UNIFIED, features)


@pytest.mark.parametrize(
    "features",
    [Sm90Features(heads_together=4), Sm90Features(decode=True), FIXED],
    ids=["heads together", "decode", "splits"],
)
def test_kernels_without_a_producer_have_tiles_of_one_head(features: Sm90Features) -> None:
    assert resolve(ONE_EACH, features) == features
    with refused("without a producer compute full and causal attention only"):
        resolve(UNIFIED, features)


def test_lengths_per_sequence_always_skip_consumers_without_queries() -> None:
    with refused(
        "a length .* is asked for, .* always skipped; pass a config with skip_empty=False"
    ):
        resolve(replace(HOPPER, skip_empty=True), PER_BATCH)


@pytest.mark.parametrize("config", [ONE_EACH, HOPPER, PERSISTENT, UNIFIED])
@pytest.mark.parametrize("features", [PLAIN, CAUSAL, Features(sinks=True)])
def test_every_order_serves_sequences_of_one_length(
    config: HopperForwardKernelConfig, features: Features
) -> None:
    resolved = resolve(config, features)
    assert (resolved.mask, resolved.sinks) == (features.mask, features.sinks)
    assert resolved.walk(config.tile_order) is Walk[config.tile_order.name]


@pytest.mark.parametrize("config", [ONE_EACH, PERSISTENT])
@pytest.mark.parametrize(
    ("features", "asked"),
    [
        (PER_BATCH, "a length of its own for every sequence is asked for"),
        (
            Features(MaskKind.CAUSAL, per_batch=True, page_keys=64),
            "causal=True, a length of its own for every sequence, block_table are asked for",
        ),
        (
            Sm90Features(per_batch=True, heads_together=4),
            "a length of its own for every sequence is asked for",
        ),
    ],
)
def test_sequences_of_their_own_lengths_need_the_counter(
    config: HopperForwardKernelConfig, features: Features, asked: str
) -> None:
    order = config.tile_order.name
    message = (
        f"^{asked}, and tiles of sequences of different lengths are handed out by a counter; the"
        f" config has tile_order=TileOrder.{order}: pass one with TileOrder.DYNAMIC, or leave"
        " config out$"
    )
    with refused(message):
        resolve(config, features)
    dynamic = replace(config, tile_order=TileOrder.DYNAMIC)
    assert resolve(dynamic, features).walk(dynamic.tile_order) is Walk.PACKED


@pytest.mark.parametrize("per_batch", [False, True])
@pytest.mark.parametrize("splits", SplitKind)
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tile_order": TileOrder.DYNAMIC}, "tile_order"),
        ({"tile_order": TileOrder.PERSISTENT}, "tile_order"),
        ({"own_output": True}, "own_output"),
        ({"direct_output": True}, "direct_output"),
    ],
    ids=str,
)
def test_decoding_leaves_no_field_idle(
    change: dict[str, Any], field: str, splits: SplitKind, per_batch: bool
) -> None:
    features = Sm90Features(per_batch=per_batch, decode=True, splits=splits)
    message = (
        f"^split_keys is given, and {field} of the config would change nothing: a CTA then has one"
        " split of keys, and its rows of O leave from registers; leave the field at its default,"
        " or leave config out$"
    )
    with refused(message):
        resolve(replace(ONE_EACH, **change), features)
    walks = {SplitKind.EVEN: Walk.STREAM_K, SplitKind.ON_DEVICE: Walk.ON_DEVICE}
    resolved = resolve(ONE_EACH, features)
    assert resolved.walk(ONE_EACH.tile_order) is walks.get(splits, Walk.ONE_EACH)


def test_only_walks_that_take_tiles_from_a_counter_have_one() -> None:
    assert {walk for walk in Walk if walk.counts_tiles} == {Walk.DYNAMIC, Walk.PACKED}


def test_a_translation_unit_binds_what_the_features_say_and_nothing_else() -> None:
    plain = unit_of(HOPPER).source
    for line in ("Mask = fa::attn::mask::Full;", "Score = fa::attn::score::Plain;"):
        assert f"using {line}" in plain
    assert "using TileOrder = fa::sm90::tile_order::Dynamic;" in plain
    all_at_once = unit_of(HOPPER, Features(MaskKind.WINDOW, True, True)).source
    for line in (
        "Mask = fa::attn::mask::Window;",
        "Score = fa::attn::score::Softcap;",
        "Lengths = fa::attn::lengths::PerBatch;",
        "TileOrder = fa::sm90::tile_order::Packed;",
    ):
        assert all_at_once.count(f"using {line}") == 1
    assert all_at_once.count("using TileOrder") == 1
    assert set(include_closure(all_at_once)) == set(include_closure(plain))


def test_parts_of_a_row_end_without_the_sink() -> None:
    sink, none = (f"using Sinks = fa::attn::sinks::{name};" for name in ("PerHead", "None"))
    assert none in unit_of(ONE_EACH).source
    assert sink in unit_of(ONE_EACH, Features(sinks=True)).source
    assert sink in unit_of(ONE_EACH, Sm90Features(sinks=True, decode=True)).source
    for splits in (SplitKind.FIXED, SplitKind.EVEN):
        assert none in unit_of(ONE_EACH, Sm90Features(sinks=True, splits=splits)).source
    on_device = Sm90Features(sinks=True, per_batch=True, splits=SplitKind.ON_DEVICE)
    assert sink in unit_of(ONE_EACH, on_device).source  # some rows have no parts


@pytest.mark.parametrize(
    ("config", "features", "lines"),
    [
        (ONE_EACH, Sm90Features(), ("tile_order::OneEach", "output::OverQueries")),
        (
            replace(PERSISTENT, own_output=True),
            Sm90Features(),
            ("tile_order::Persistent", "output::OwnBuffer"),
        ),
        (ONE_EACH, Sm90Features(decode=True), ("tile_order::OneEach", "output::Direct")),
        (ONE_EACH, FIXED, ("tile_order::OneEach", "output::Partial")),
        (
            ONE_EACH,
            Sm90Features(splits=SplitKind.EVEN),
            ("tile_order::StreamK", "output::Partial", "splits::Even"),
        ),
        (
            ONE_EACH,
            Sm90Features(decode=True, heads_together=7, page_keys=16),
            ("rows::GroupedHeads<7>", "pages::PanelBoxes<16>"),
        ),
        (
            ONE_EACH,
            Sm90Features(per_batch=True, page_keys=24, whole_rows=True),
            ("pages::GroupBoxes<24>",),
        ),
        (
            ONE_EACH,
            Sm90Features(decode=True, splits=SplitKind.ON_DEVICE, one_launch=True),
            ("tile_order::OnDevice", "output::WholeOrCombined", "splits::OnDevice"),
        ),
        (ONE_EACH, Sm90Features(), ("rows::OneHead", "pages::Contiguous", "splits::Whole")),
    ],
)
def test_tiles_and_outputs_are_bound_as_they_are_walked(
    config: HopperForwardKernelConfig, features: Sm90Features, lines: tuple[str, ...]
) -> None:
    declared = [binding.declaration for binding in features.bindings(config)]
    for line in lines:
        assert sum(f"::{line};" in each for each in declared) == 1, line


@pytest.mark.parametrize(("case", "dtype", "device"), of_dtypes(third_of_features(1)))
def test_a_kernel_is_right_and_repeats_itself(case: Case, dtype: torch.dtype, device: str) -> None:
    made = case.make(device, dtype)
    call = made.call(return_lse=True)
    plan = Plan(call, arch=ARCHES["sm_90"])
    out, lse = ran(plan, call)
    made.assert_right(out, lse)
    rows = len(out) - case.padding
    for _ in range(5 if device == "cuda" else 0):
        assert torch.equal(ran(plan, call)[0][:rows], out[:rows])


@pytest.mark.parametrize(
    ("name", "schedule"),
    in_turn(
        ["packed, causal, with sinks", "packed queries of a cache, everything at once"],
        ["depth-first", "random"],
    ),
)
def test_the_order_of_the_warps_does_not_matter(name: str, schedule: str) -> None:
    (case,) = (case for case in CASES if case.name == name)
    made = case.make()
    first, second = (emulated(made, selected(made), order) for order in ("lockstep", schedule))
    assert torch.equal(first.output, second.output)
    assert first.lse is not None
    assert second.lse is not None
    assert torch.equal(first.lse, second.lse)


def test_the_last_group_of_heads_may_be_smaller() -> None:
    made = Case("", (200, 130), (100, 90), heads=3, heads_k=3).make()
    two_heads = {"max_seqlen_k": 2000}  # fit in a MiB, which the lengths themselves do not show
    arguments = made.arguments | two_heads
    config = replace(HOPPER, group_mib=1)
    result = emulate(config, made.q, made.k, made.v, return_lse=True, **arguments)
    assert list(map(str, result.findings)) == []
    made.assert_right(result.output, result.lse)


@pytest.mark.parametrize("lengths", [(150, 90), ((100, 50), (60, 30))], ids=["one", "packed"])
def test_heads_may_be_walked_one_at_a_time(lengths: tuple[Any, Any]) -> None:
    made = Case("", *lengths, heads=3, heads_k=3, causal=True).make()
    result = emulated(made, replace(HOPPER, group_mib=0))
    made.assert_right(result.output, result.lse)


def test_a_kernel_without_a_producer_takes_sinks_and_fewer_columns() -> None:
    unified = HopperForwardKernelConfig(DType.BF16, 64, 1, 64, 1, tma=True)
    made = Case("", 100, 70, d_qk=40, d_v=24, heads=2, heads_k=1, causal=True, sinks=True).make()
    result = emulated(made, unified)
    made.assert_right(result.output, result.lse)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_given_output_of_other_columns_is_filled_and_nothing_beside_it(
    dtype: torch.dtype,
) -> None:
    made = Case("", (100, 30), (100, 40), d_qk=64, d_v=40, causal=True).make(dtype=dtype)
    room = torch.full((140, 6, 64), 7.0, dtype=dtype)
    inside = room[5:135, 1:5, 8:48]
    config = selected(made)
    assert forward(config, made.q, made.k, made.v, inside, **made.arguments) is inside
    made.assert_right(inside)
    inside.fill_(7.0)
    assert bool((room == 7.0).all())


def test_strides_of_packed_tensors_are_followed() -> None:
    made = Case("", (100, 30), (100, 40), causal=True).make()
    config = selected(made)
    expected = forward(config, made.q, made.k, made.v, **made.arguments)
    heads_first = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in (made.q, made.k, made.v)]
    assert torch.equal(forward(config, *heads_first, **made.arguments), expected)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("sinks", [False, True])
def test_without_a_key_the_lse_is_the_sink(sinks: bool) -> None:
    made = Case("", (10, 20), (0, 0), sinks=sinks).make()
    out, lse = forward(HOPPER, made.q, made.k, made.v, return_lse=True, **made.arguments)
    assert torch.equal(out, torch.zeros_like(made.q))
    made.assert_right(out, lse)
