# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from flash_attention.compile.binding import Number, Variant, headers, render_struct


def test_names_are_derived_from_fields_and_types() -> None:
    assert Number("B_r", 64).declaration == "static constexpr int kBR = 64;"
    assert Number("d_head", 128).declaration == "static constexpr int kDHead = 128;"
    layout = Variant("Layout", "sm80/layout", "XorSwizzle")
    assert layout.declaration == "using Layout = fa::sm80::layout::XorSwizzle;"
    assert layout.header == "fa/sm80/tile.cuh"
    loads = Variant("KFragmentLoads", "sm80/fragment_loads", "DoubleBuffered", 2)
    assert (
        loads.declaration == "using KFragmentLoads = fa::sm80::fragment_loads::DoubleBuffered<2>;"
    )


def test_a_header_used_twice_is_included_once() -> None:
    whole = (
        Variant("KFragmentLoads", "sm80/fragment_loads", "Whole"),
        Variant("VFragmentLoads", "sm80/fragment_loads", "Whole"),
    )
    assert headers(whole) == ["fa/sm80/mma.cuh"]
    assert render_struct(whole).count("using") == 2


def test_a_struct_lists_the_bindings_in_their_order() -> None:
    bindings = (Number("B_r", 64), Variant("Layout", "sm80/layout", "RowMajor"))
    assert render_struct(bindings).splitlines() == [
        "struct Config {",
        "  static constexpr int kBR = 64;",
        "  using Layout = fa::sm80::layout::RowMajor;",
        "};",
    ]
    assert headers(bindings) == ["fa/sm80/tile.cuh"]
