# SPDX-License-Identifier: Apache-2.0
"""How declarations are printed: widths, lambdas, comments, and what shares a line."""

from __future__ import annotations

from flash_attention.tools.ladder.layout import WIDTH, Layout, fill, paragraphs
from flash_attention.tools.ladder.parse import Item, parse_file
from flash_attention.tools.ladder.tokens import lex


def printed(text: str) -> list[str]:
    layout = Layout(lambda item: True, apart=Item("class", []))
    return [line for item in parse_file(text, "some.cuh") for line in layout.lines(item)]


def test_what_fits_is_on_one_line() -> None:
    assert printed("class A {\n public:\n  int x;\n};") == ["struct A { int x; };"]
    assert printed("void f() {\n  g();\n  h();\n}") == ["void f() { g(); h(); }"]


def test_short_statements_share_lines_and_a_body_closes_where_it_ends() -> None:
    text = "void f() {\n  a();\n  b();  // done\n  if (c) d();\n  e();\n  g();\n}"
    assert printed(text) == ["void f() {", "  a(); b();  // done", "  if (c) d();", "  e(); g(); }"]


def test_loops_say_how_they_unroll() -> None:
    text = "void f() {\n#pragma unroll\n  for (;;)\n#pragma unroll 2\n    for (;;) g();\n}"
    assert printed(text) == ['void f() { UNROLL for (;;) _Pragma("unroll 2") for (;;) g(); }']


def test_bodies_of_lambdas_are_their_own() -> None:
    text = "void f() {\n  g(A{}, [&] { h(); }, [](int i) { return i; });\n}"
    assert printed(text) == ["void f() { g(A{}, [&] { h(); }, [](int i) { return i; }); }"]
    text = "void f() {\n  g(A{}, [&] { h(); h(); }, [](int i) { k(i); return i; });\n}"
    assert printed(text) == [
        "void f() {",
        "  g(A{}, [&] {",
        "    h(); h();",
        "  }, [](int i) {",
        "    k(i); return i;",
        "  }); }",
    ]


def test_long_lines_are_broken_where_few_brackets_are_open() -> None:
    call = f"run(first({', '.join('abcdefgh' for _ in range(9))}), second({'y' * 9}), {'z' * 9});"
    lines = fill(lex(call), "  ")
    assert max(len(line) for line in lines) <= WIDTH
    assert [line.strip()[:6] for line in lines] == ["run(fi", "second"]


def test_comments_are_filled_but_lists_stay() -> None:
    lines = ["// One sentence that", "// goes on.", "//   a list", "//   of two", "// The end."]
    assert paragraphs(lines) == [
        "// One sentence that goes on.",
        "//   a list",
        "//   of two",
        "// The end.",
    ]
