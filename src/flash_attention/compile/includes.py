# SPDX-License-Identifier: Apache-2.0
"""Which headers a translation unit is made of; only `#include <fa/...>` is allowed."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from flash_attention.errors import CompileError

INCLUDE_DIR = Path(__file__).resolve().parent.parent / "include"

_SPLICE = re.compile(r"\\\r?\n")
_SPACE = re.compile(r"[\f\v\r]")  # what a directive may contain besides blanks and tabs
# Literals are matched so that comment marks inside them are not taken for comments; a quote right
# after a digit, as in 1'000, opens none.
_COMMENT_OR_LITERAL = re.compile(
    r"""
      //[^\n]* | /\*.*?\*/
    | (?<!\w)(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)"
    | "(?:\\.|[^"\\\n])*"
    | (?<!\w)(?:u8|[uUL])?'(?:\\.|[^'\\\n])+'
    """,
    re.DOTALL | re.VERBOSE,
)
_DIRECTIVE = re.compile(r"^[ \t]*(?:\#|%:)[ \t]*(?:include|import|embed).*$", re.MULTILINE)
_ALLOWED = re.compile(r"[ \t]*#[ \t]*include[ \t]*<(fa(?:/\w[\w.-]*)+)>[ \t]*")
_SPANNING = ('R"', "\\\n", "\\\r", "\r", "\f", "\v", "__has_")  # of more than a line, or elsewhere
_PROBE = re.compile(r"\b__has_(?:include|embed)\w*")


def include_closure(source: str, include_dir: Path = INCLUDE_DIR) -> dict[str, str]:
    """Every header `source` reaches, each after the headers it includes itself."""
    closure: dict[str, str] = {}
    visited: set[str] = set()

    def visit(text: str, where: str) -> None:
        for name in included_names(text, where):
            if name not in visited:
                visited.add(name)
                header = _read(include_dir, name, where)
                visit(header, name)
                closure[name] = header

    visit(source, "the translation unit")
    return closure


@lru_cache(maxsize=512)  # as many headers as there are, some of them with edits
def included_names(text: str, where: str) -> tuple[str, ...]:
    """The headers `text` names, in order; `where` names the text in errors."""
    if "\0" in text:
        raise CompileError(f"{where} contains a NUL character; C++ source is text")
    if _has_simple_lines(text):
        text = "\n".join(line for line in text.split("\n") if "#" in line or "%:" in line)
    code = _COMMENT_OR_LITERAL.sub(_drop_comment, _SPACE.sub(" ", _SPLICE.sub("", text)))
    if probe := _PROBE.search(code):
        raise CompileError(
            f"{where} uses {probe.group()}; what a kernel includes must not depend on what exists"
        )
    names = []
    for directive in _DIRECTIVE.findall(code):
        allowed = _ALLOWED.fullmatch(directive)
        if allowed is None:
            raise CompileError(
                f"{where} has `{directive.strip()}`; "
                "only headers of this package can be included, as `#include <fa/...>`"
            )
        names.append(allowed.group(1))
    return tuple(names)


def _has_simple_lines(text: str) -> bool:
    """Whether every line stands for itself, and only directives are of interest: no comment and no
    literal goes on in the next line. That takes an eighth of the time of looking for these."""
    if any(mark in text for mark in _SPANNING):
        return False
    return "/*" not in text or all(
        line.rfind("/*") + 1 < line.rfind("*/") for line in text.split("\n") if "/*" in line
    )


def _drop_comment(match: re.Match[str]) -> str:
    return " " if match.group().startswith("/") else match.group()


def _read(include_dir: Path, name: str, where: str) -> str:
    try:
        return (include_dir / name).read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise CompileError(
            f"{where} includes <{name}>, which cannot be read: {reason} in {include_dir}"
        ) from None
