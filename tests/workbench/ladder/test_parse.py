# SPDX-License-Identifier: Apache-2.0
"""Headers as trees: kinds, names, comments and the bodies of lambdas."""

from __future__ import annotations

import pytest

from flash_attention.compile.includes import INCLUDE_DIR
from flash_attention.errors import UnsupportedError
from flash_attention_workbench.ladder.parse import parse_file
from flash_attention_workbench.ladder.tokens import BLOCK, lex, text_of

TEXT = """// SPDX-License-Identifier: Apache-2.0
// The idea.
#pragma once
#include <fa/core.cuh>

namespace fa::some {

// A constant.
inline constexpr int kOne = 1, kTwo = f(1, 2);  // two

template <int N = 4, class T>
class Box : Base<N> {  // a box
 public:
  __device__ explicit Box(int n) : n_(n), m_{n, n} {}
  template <class F>
  __device__ void each(F f) const {
#pragma unroll 2
    for (int i = 0; i < N; ++i)
      if (i > n_) f(i);  // later
    const auto g = [&](int i) { return f(i); };
  }

 private:
  int n_, m_[2];
};

template <>
__device__ inline void run<Box<4, int>>(float (&d)[4]) {}

}  // namespace fa::some
"""


def test_declarations_know_what_they_are() -> None:
    constant, box, run = parse_file(TEXT, "some.cuh")
    assert [item.kind for item in (constant, box, run)] == ["variable", "class", "function"]
    assert (constant.names, box.names, run.names) == (("kOne", "kTwo"), ("Box",), ("run",))
    assert {item.path for item in (constant, box, run)} == {("fa", "some")}
    assert constant.about == ["// The idea."]
    assert (constant.lead, constant.trail, box.note) == (["// A constant."], "// two", "// a box")
    assert box.template_parameters == ["N", "T"]


def test_members_and_statements_are_items_too() -> None:
    box = parse_file(TEXT, "some.cuh")[1]
    assert box.body is not None
    made, each, fields = box.body
    assert (made.names, each.names, fields.names) == (("Box",), ("each",), ("n_", "m_"))
    assert (made.body, fields.is_field) == ([], True)
    assert each.body is not None
    loop, alias = each.body
    assert (loop.word, loop.pragmas, loop.trail) == ("for", ["#pragma unroll 2"], "// later")
    (block,) = (token for token in alias.head if token.kind == BLOCK)
    assert [text_of(statement.head) for statement in block.body] == ["return f(i);"]


def test_values_of_an_enum_keep_their_comments() -> None:
    (barrier,) = parse_file(
        "enum class Barrier : int {\n  kOne = 1,  // first\n  kTwo\n};", "b.cuh"
    )
    assert (barrier.kind, barrier.names) == ("enum", ("Barrier",))
    assert [(text_of(v.head), v.trail) for v in barrier.body or ()] == [
        ("kOne = 1,", "// first"),
        ("kTwo", ""),
    ]


def test_a_using_declaration_is_no_alias() -> None:
    alias, names = parse_file("using A = b::C<int>;\nusing b::D, b::E;", "u.cuh")
    assert (alias.names, alias.is_using_declaration) == (("A",), False)
    assert (names.names, names.is_using_declaration) == (("D", "E"), True)


def test_every_header_of_the_package_is_understood() -> None:
    for path in INCLUDE_DIR.rglob("*.cuh"):
        text = path.read_text()
        items = parse_file(text, path.name)
        assert items, path
        assert all(item.names or item.kind == "other" for item in items), path


def test_directives_it_does_not_know_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="#ifdef FAST"):
        parse_file("#ifdef FAST\nint x;\n#endif\n", "fast.cuh")


def test_text_on_one_line_is_spaced_as_it_was() -> None:
    text = 'asm volatile(\n    "mov %0;" ::"r"(x),\n    "l"(y)\n    : "memory");'
    assert text_of(lex(text)) == 'asm volatile("mov %0;" ::"r"(x), "l"(y) : "memory");'
