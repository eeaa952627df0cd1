# SPDX-License-Identifier: Apache-2.0
"""The text of a kernel: what is included, in which order, and that it compiles."""

from __future__ import annotations

from typing import Any

import pytest

from flash_attention.compile import compile_kernel
from flash_attention.compile.binding import Number, Variant
from flash_attention.compile.includes import include_closure
from flash_attention.compile.unit import Unit, kept, render
from flash_attention.errors import CompileError

PARTS: dict[str, Any] = {
    "entry": "scale_scores",
    "title": "scores become scores",
    "header": "fa/core.cuh",
    "bindings": (
        Number("rows", 64),
        Variant("Score", "attn/score", "Plain"),
        Variant("Mask", "attn/mask", "Full"),
    ),
    "asserts": "static_assert(Config::kRows == 64);",
    "bounds": "128, 1",
    "parameters": ("float* out", "int count"),
    "body": ("const int i = threadIdx.x;", "if (i < count) out[i] = Config::kRows;"),
}


def test_a_unit_is_written_from_the_includes_down_to_the_entry() -> None:
    assert render(**PARTS).splitlines() == [
        "// scores become scores",
        "#include <fa/core.cuh>",
        "#include <fa/attn/mask.cuh>",
        "",
        "struct Config {",
        "  static constexpr int kRows = 64;",
        "  using Score = fa::attn::score::Plain;",
        "  using Mask = fa::attn::mask::Full;",
        "};",
        "",
        "static_assert(Config::kRows == 64);",
        "",
        'extern "C" __global__ void __launch_bounds__(128, 1)',
        "scale_scores(",
        "    float* out,",
        "    int count) {",
        "  const int i = threadIdx.x;",
        "  if (i < count) out[i] = Config::kRows;",
        "}",
    ]


def test_wrappers_stand_between_the_struct_and_the_asserts() -> None:
    source = render(**PARTS, wrappers=("// first", "// second"))
    places = [source.index(text) for text in ("};", "// first", "// second", "static_assert")]
    assert places == sorted(places)
    assert "// first\n\n// second\n\nstatic_assert" in source


def test_only_the_headers_of_what_is_named_are_included_and_it_compiles() -> None:
    source = render(**PARTS)
    closure = include_closure(source)
    assert "fa/attn/mask.cuh" in closure
    assert not any(name.startswith(("fa/sm80/", "fa/sm90/")) for name in closure)
    compiled = compile_kernel(source, arch="sm_80", name="rendered")
    assert compiled.resources.registers > 0
    assert compiled.entry == "scale_scores"


def test_what_python_asserts_of_a_layout_the_compiler_checks() -> None:
    wrong = PARTS | {"asserts": "static_assert(Config::kRows == 63);"}
    with pytest.raises(CompileError, match="static assertion failed"):
        compile_kernel(render(**wrong), arch="sm_80", name="wrong_assert")


def test_units_are_the_same_if_their_name_target_and_text_are() -> None:
    unit = Unit("a", "sm_80", "text")
    assert {unit, Unit("a", "sm_80", "text")} == {unit}
    others = (Unit("b", "sm_80", "text"), Unit("a", "sm_90", "text"), Unit("a", "sm_80", "other"))
    assert unit not in others


def test_a_unit_that_was_made_is_kept() -> None:
    made: list[int] = []

    @kept
    def unit(rows: int) -> Unit:
        made.append(rows)
        return Unit(f"rows_{rows}", "sm_90a", render(**PARTS))

    assert unit(64) is unit(64) == unit(64)
    assert unit(32).name == "rows_32"
    assert made == [64, 32]
