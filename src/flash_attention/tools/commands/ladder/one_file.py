# SPDX-License-Identifier: Apache-2.0
"""A translation unit and everything it includes as one file that reads from top to bottom."""

from __future__ import annotations

import re

from flash_attention.compile.includes import include_closure

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>]+)>[^\n]*\n?", re.MULTILINE)
_PER_FILE = re.compile(
    r"^[ \t]*(?:#[ \t]*pragma[ \t]+once|// SPDX-License-Identifier:[^\n]*)\n?", re.MULTILINE
)
_LICENSE = "// SPDX-License-Identifier: Apache-2.0\n"


def one_file(source: str) -> str:
    """`source` after its headers, each under its name and after those it needs."""
    texts = include_closure(source)
    placed: list[str] = []
    for name in _INCLUDE.findall(source):
        _place(name, texts, placed)
    sections = [f"// ===== {name} =====\n\n{_body(texts[name])}" for name in placed]
    return "\n".join((_LICENSE, *sections, f"// ===== the kernel =====\n\n{_body(source)}"))


def _place(name: str, texts: dict[str, str], placed: list[str]) -> None:
    if name in placed:
        return
    for needed in _INCLUDE.findall(texts[name]):
        _place(needed, texts, placed)
    placed.append(name)


def _body(text: str) -> str:
    return _INCLUDE.sub("", _PER_FILE.sub("", text)).strip("\n") + "\n"
