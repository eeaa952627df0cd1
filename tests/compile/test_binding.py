# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

from flash_attention.arch import ARCHES
from flash_attention.call.features import Features, MaskKind, SplitKind
from flash_attention.compile import INCLUDE_DIR
from flash_attention.compile.binding import Number, Variant, headers, render_struct
from flash_attention.families.sets import get_kernels_to_build


def test_names_are_derived_from_fields_and_types() -> None:
    assert Number("B_r", 64).declaration == "static constexpr int kBR = 64;"
    assert Number("d_head", 128).declaration == "static constexpr int kDHead = 128;"
    layout = Variant("Layout", "sm80/layout", "XorSwizzle")
    assert layout.declaration == "using Layout = fa::sm80::layout::XorSwizzle;"
    assert layout.header == "fa/sm80/layout/xor_swizzle.cuh"
    feed = Variant("KFeed", "sm80/feed", "DoubleBuffered", 2)
    assert feed.declaration == "using KFeed = fa::sm80::feed::DoubleBuffered<2>;"


def test_a_header_used_twice_is_included_once() -> None:
    whole = Variant("KFeed", "sm80/feed", "Whole"), Variant("VFeed", "sm80/feed", "Whole")
    assert headers(whole) == ["fa/sm80/feed/whole.cuh"]
    assert render_struct(whole).count("using") == 2


def test_every_variant_header_exists_and_every_variant_file_is_used() -> None:
    configs = get_kernels_to_build(ARCHES["sm_90"])
    named = {h for cfg in configs for h in cfg.headers()}
    every = [Features(mask, on, on, sinks=on) for mask in MaskKind for on in (False, True)]
    short = Features(heads_together=4, few_queries=True, page_keys=16)
    every += [replace(short, splits=kind) for kind in SplitKind]
    first, *_, hopper = (config.bindings() for config in configs)
    for features in every:
        named |= {
            *headers(features.bind_first_family(first)),
            *headers(features.bind_hopper(hopper)),
        }
    assert {h for h in named if not (INCLUDE_DIR / h).is_file()} == set()
    slots = {str((INCLUDE_DIR / h).parent) for h in named}
    on_disk = {
        str(path.relative_to(INCLUDE_DIR))
        for path in INCLUDE_DIR.rglob("*.cuh")
        if str(path.parent) in slots
    }
    plain_copies_only_without_async = {"fa/sm80/copy/plain_copy.cuh"}
    assert on_disk - named == plain_copies_only_without_async
