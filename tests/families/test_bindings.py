# SPDX-License-Identifier: Apache-2.0
"""Variants: those that every family binds alike, and that each is defined and used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from flash_attention.arch import ARCHES
from flash_attention.call.features import PLAIN, Features, MaskKind
from flash_attention.compile import INCLUDE_DIR
from flash_attention.compile.binding import Binding, Variant, defined_types
from flash_attention.families.bindings import dtype_binding, shared_bindings
from flash_attention.families.sm80.forward.features import Sm80Features
from flash_attention.families.sm90.forward.features import Sm90Features, SplitKind
from flash_attention.families.sm90.fp8.config import HopperFp8KernelConfig
from flash_attention.families.sm90.mla.config import HopperMlaKernelConfig
from flash_attention.families.sm90.mla.features import MlaFeatures
from flash_attention.families.sm90.mla.features import bindings as mla_bindings
from flash_attention.kernel_configs import (
    DType,
    HopperForwardKernelConfig,
    TileOrder,
    get_kernels_to_build,
)
from flash_attention.program.trace import trace_mask

SEES_ALL = trace_mask(lambda batch, head, query, key: query >= 0).program


def declared(features: Features, sinks: bool | None = None) -> list[str]:
    bound = shared_bindings(features, sinks=sinks)
    return [binding.declaration.removeprefix("using ") for binding in bound]


def test_the_element_types_share_a_header() -> None:
    assert {dtype_binding(dtype).header for dtype in DType} == {"fa/dtype.cuh"}


def test_plain_attention_binds_the_plain_variants() -> None:
    assert declared(PLAIN) == [
        "Mask = fa::attn::mask::Full;",
        "Score = fa::attn::score::Plain;",
        "Lengths = fa::attn::lengths::Same;",
        "Dropout = fa::attn::dropout::None;",
        "Function = fa::attn::user_function::None;",
        "Sinks = fa::attn::sinks::None;",
    ]


@pytest.mark.parametrize(
    ("features", "line"),
    [
        (Features(MaskKind.CAUSAL), "Mask = fa::attn::mask::Causal;"),
        (Features(MaskKind.WINDOW), "Mask = fa::attn::mask::Window;"),
        (Features(softcap=True), "Score = fa::attn::score::Softcap;"),
        (Features(per_batch=True), "Lengths = fa::attn::lengths::PerBatch;"),
        (Features(sinks=True), "Sinks = fa::attn::sinks::PerHead;"),
        (Features(dropout=True), "Dropout = fa::attn::dropout::Philox;"),
        (Features(program=SEES_ALL), "Function = fa::attn::user_function::Traced<Program, false>;"),
    ],
)
def test_each_feature_binds_its_variant_and_no_other(features: Features, line: str) -> None:
    assert set(declared(features)) - set(declared(PLAIN)) == {line}


def test_a_family_may_leave_the_sinks_to_another_kernel() -> None:
    assert declared(Features(sinks=True), sinks=False) == declared(PLAIN)


def bound_by_features() -> Iterator[tuple[Binding, ...]]:
    """What the features of both families bind, each of their values at least once."""
    hopper = HopperForwardKernelConfig(DType.BF16, 64, 2, 64, 2, tma=True, specialised=True)
    orders = [replace(hopper, tile_order=order, own_output=bool(order)) for order in TileOrder]
    for mask in MaskKind:
        for on in (False, True):
            yield Sm80Features(mask, on, on, sinks=on).bindings()
            for config in orders:
                yield Sm90Features(mask, on, on, sinks=on).bindings(config)
    yield Sm80Features(per_batch=True, page_keys=16).bindings()
    yield Sm80Features(dropout=True).bindings()
    for page in (0, 16):
        listed = Sm80Features(per_batch=True, page_keys=page, program=SEES_ALL)
        yield replace(listed, listed=True).bindings()
    for page in (1, 16):
        pages = Sm90Features(per_batch=True, page_keys=page)
        yield pages.bindings(hopper)
        yield (pages.pages(hopper.B_c),)
    yield Sm90Features(per_batch=True, page_keys=16, whole_rows=True).bindings(hopper)
    yield Sm90Features(per_batch=True, page_keys=16, least_queries=17).bindings(hopper)
    for splits in SplitKind:
        short = Sm90Features(heads_together=4, decode=True, page_keys=16, splits=splits)
        yield short.bindings(hopper)
        yield replace(short, one_launch=True).bindings(hopper)
    for softcap in (False, True):
        yield Sm90Features(softcap=softcap, max_score=True).bindings(hopper)
    yield Sm90Features(program=SEES_ALL, listed=True).bindings(hopper)
    yield Sm90Features(program=SEES_ALL, bias=True).bindings(hopper)
    yield Sm90Features(dropout=True).bindings(hopper)
    for splits in (SplitKind.WHOLE, SplitKind.EVEN):
        packed = MlaFeatures(per_batch=True, packed_queries=True, splits=splits)
        yield mla_bindings(EVERY_MLA_VARIANT[0], packed)
    for blocks in (False, True):
        yield Sm90Features(block_descales=blocks).bindings(EVERY_8_BIT_VARIANT[0])


_CONVERTING = HopperForwardKernelConfig(
    *(DType.BF16, 64, 1, 64, 2), tma=True, specialised=True, kv_8_bit=True
)
EVERY_8_BIT_VARIANT = [
    _CONVERTING,
    replace(_CONVERTING, q_8_bit=True),
    replace(_CONVERTING, q_8_bit=True, scores_8_bit=True),
]

EVERY_FP8_VARIANT = [
    HopperFp8KernelConfig(DType.BF16, 128, 2, 128, 2),
    HopperFp8KernelConfig(
        *(DType.BF16, 128, 2, 128, 2),
        q_in_registers=True,
        overlap=True,
        tensor_sums=True,
        promote_blocks=8,
    ),
    HopperFp8KernelConfig(DType.BF16, 128, 2, 128, 2, tensor_sums=True, linear_groups=2),
    HopperFp8KernelConfig(DType.BF16, 128, 2, 128, 2, values_transposed=True),
]

EVERY_MLA_VARIANT = [
    HopperMlaKernelConfig(DType.BF16, 512),
    HopperMlaKernelConfig(DType.BF16, 512, rescale_threshold=8, defer_values=True),
]


def test_every_variant_is_defined_and_every_variant_of_a_slot_is_used() -> None:
    units = [cfg.bindings() for cfg in get_kernels_to_build(ARCHES["sm_90"])]
    others = (*EVERY_8_BIT_VARIANT, *EVERY_FP8_VARIANT, *EVERY_MLA_VARIANT)
    units += [cfg.bindings() for cfg in others]
    bound = {b for bindings in (*units, *bound_by_features()) for b in bindings}
    variants = {b for b in bound if isinstance(b, Variant)}
    assert all((INCLUDE_DIR / variant.header).is_file() for variant in variants)
    named = {f"{v.folder.replace('/', '::')}::{v.type}" for v in variants}
    slots = {name.rpartition("::")[0] for name in named}
    defined = {name for name in defined_types() if name.rpartition("::")[0] in slots}
    assert defined - named == HELPERS


HELPERS = {
    "sm80::predication::ListedScope",
    "sm90::output::PlaceInTile",
    "sm90::fp8::values::EvenKeysFirst",
}
"""Types of a slot's namespace that are no variants of it."""
