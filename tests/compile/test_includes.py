# SPDX-License-Identifier: Apache-2.0
"""Which headers are found, in which order, and which include forms are refused."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from flash_attention.compile import includes
from flash_attention.compile.includes import INCLUDE_DIR, include_closure, included_names
from flash_attention.errors import CompileError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    headers = {
        "a.cuh": "#pragma once\n#include <fa/sub/b.cuh>\n#include <fa/c.cuh>\n// a\n",
        "sub/b.cuh": "#pragma once\n  #  include  <fa/c.cuh>  // the shared part\n",
        "c.cuh": "#pragma once\n#include <fa/a.cuh>\n",
        "unused.cuh": "",
    }
    for name, text in headers.items():
        path = tmp_path / "fa" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_closure_lists_each_header_once_after_what_it_includes(tree: Path) -> None:
    closure = include_closure("#include <fa/a.cuh>\n#include <fa/c.cuh>\nint x;\n", tree)
    assert list(closure) == ["fa/c.cuh", "fa/sub/b.cuh", "fa/a.cuh"]
    assert closure["fa/a.cuh"] == (tree / "fa" / "a.cuh").read_text()


def test_source_without_includes_has_an_empty_closure(tree: Path) -> None:
    assert include_closure("int x;\n", tree) == {}


@pytest.mark.parametrize(
    "source",
    [
        '// #include "left_out.h"\n',
        "/*\n#include <cuda_fp16.h>\n*/\n",
        'const char* text = "// no comment"; /* #include <x> */\n',
    ],
)
def test_comments_include_nothing(tree: Path, source: str) -> None:
    assert include_closure(source, tree) == {}


def test_comment_mark_in_a_string_hides_no_include(tree: Path) -> None:
    source = 'const char* text = "/*";\n#include <fa/c.cuh>\nconst char* end = "*/";\n'
    assert "fa/c.cuh" in include_closure(source, tree)


@pytest.mark.parametrize(
    "directive",
    [
        "#include <cuda_fp16.h>",
        '#include "fa/a.cuh"',
        "#include <fa/../secret.h>",
        "#include <fa//a.cuh>",
        "#include </etc/passwd>",
        "#include HEADER",
        "#include_next <fa/a.cuh>",
        "#import <fa/a.cuh>",
        "%:include <fa/a.cuh>",
        "# \\\ninclude <cstdint>",
        "#incl\\\r\nude <cstdint>",
        "\f#include <cstdint>",
        "\v#include <cstdint>",
        "\r#include <cstdint>",
        "#\finclude\v<cstdint>",
        'auto s = R"(")";\n#include <cstdint>\nauto t = R"(")";',
        "int a = '/*';\n#include <cstdint>\nint b = '*/';",
        "int a = 1'000;\n#include <cstdint>\nint b = 1'000;",
        "/* so */ #include <cstdint>",
        "#if __has_include(<fa/a.cuh>)\n#endif",
    ],
)
def test_every_other_form_is_refused(tree: Path, directive: str) -> None:
    with pytest.raises(CompileError, match=r"only headers of this package|must not depend"):
        include_closure(f"int x;\n{directive}\n", tree)


@pytest.mark.parametrize(
    "directive",
    ["\f#include <fa/c.cuh>", "\v#\finclude\v<fa/c.cuh>", "#inc\\\r\nlude <fa/c.cuh>\r"],
)
def test_every_kind_of_space_is_seen_through(tree: Path, directive: str) -> None:
    assert "fa/c.cuh" in include_closure(f"int x;\n{directive}\n", tree)


def test_a_text_that_is_none_is_refused(tree: Path) -> None:
    with pytest.raises(CompileError, match="the translation unit contains a NUL character"):
        include_closure("int x;\0\n", tree)
    (tree / "fa" / "c.cuh").write_bytes(b"// \xff\n")
    with pytest.raises(CompileError, match=r"includes <fa/c\.cuh>, which cannot be read: invalid"):
        include_closure("#include <fa/c.cuh>\n", tree)


def test_refusal_names_the_header_it_stands_in(tree: Path) -> None:
    (tree / "fa" / "c.cuh").write_text("#include <cstdint>\n")
    with pytest.raises(CompileError, match=r"fa/c\.cuh has `#include <cstdint>`"):
        include_closure("#include <fa/a.cuh>\n", tree)


def test_missing_header_names_who_wanted_it(tree: Path) -> None:
    (tree / "fa" / "c.cuh").write_text("#include <fa/gone.cuh>\n")
    with pytest.raises(CompileError, match=r"fa/c\.cuh includes <fa/gone\.cuh>"):
        include_closure("#include <fa/a.cuh>\n", tree)


def test_every_header_of_the_package_is_made_of_package_headers_only() -> None:
    headers = [path.relative_to(INCLUDE_DIR).as_posix() for path in INCLUDE_DIR.rglob("*.cuh")]
    assert headers
    closure = include_closure("".join(f"#include <{name}>\n" for name in headers))
    assert set(closure) == set(headers)


PIECES = ("#include <fa/a.cuh>", "%:include <fa/b.cuh>", "#include <x>", "/*", "*/", "//", '"', "'")
SPACES = (
    "\n",
    "\n",
    " ",
    "\\\n",
    "\r",
    'R"(',
    ')"',
    "1'000",
    "__has_include(<x>)",
    "# define A",
    "x",
)


def test_lines_that_stand_for_themselves_are_read_as_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = random.Random(0)
    texts = ["".join(draw.choices(PIECES + SPACES, k=draw.randint(1, 12))) for _ in range(20_000)]
    simple = [each for each in texts if includes._has_simple_lines(each)]
    found = [_names_or_error(each) for each in simple]
    assert sum(isinstance(each, tuple) and len(each) > 0 for each in found) > 200
    included_names.cache_clear()
    monkeypatch.setattr(includes, "_has_simple_lines", lambda text: False)
    assert [_names_or_error(each) for each in simple] == found


def _names_or_error(text: str) -> tuple[str, ...] | str:
    try:
        return included_names(text, "the text")
    except CompileError as error:
        return str(error)
