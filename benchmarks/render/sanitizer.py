# SPDX-License-Identifier: Apache-2.0
"""What the tools of compute-sanitizer find beside the emulator."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.render.blocks import table, wrap

SANITIZER = "sanitizer"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
EMULATOR, NO_TOOL = "emulator", "no tool"
API_ERROR = "Program hit"  # the driver's own answer, which every program gets

_SIZE = re.compile(r" of size \d+ bytes")

Row = Mapping[str, Any]


def sanitizer_block(record: Mapping[str, Any], where: str) -> str:
    """The results of benchmarks/sanitizer.py by the kind of the mistake."""
    rows = record["rows"]
    wrong = [row for row in rows if row["mistake"]]
    right = [row for row in rows if not row["mistake"]]
    kinds = Counter(row["mistake"] for row in wrong)
    header = ["mistake", "kernels", EMULATOR, *TOOLS, "one of the four", "fails on the GPU"]
    order = sorted(kinds, key=lambda kind: (-kinds[kind], kind))
    lines = [_line(f"`{kind}`", [r for r in wrong if r["mistake"] == kind]) for kind in order]
    lines.append(_line("**all**", wrong))
    lines.append(_line("none: the kernel is right", right))
    seconds = record["alone_s"]
    times = ", ".join(f"{name} {seconds[name]:.1f} s" for name in (EMULATOR, NO_TOOL, *TOOLS))
    setting = (
        f"{where}, compute-sanitizer {record['sanitizer']}. A cell is how many of the kernels are"
        " reported. The last column is how many fail or never end without a tool."
    )
    alone = f"A process with one small kernel takes: {times}. {_places(wrong)}"
    return wrap(
        SANITIZER,
        (setting, "", *table(header, lines, left=1), "", alone, "", *_words(wrong)),
    )


def _line(name: str, rows: Sequence[Row]) -> list[str]:
    cells = [_cell(rows, (tool,)) for tool in (EMULATOR, *TOOLS)]
    seen = [row for row in rows if NO_TOOL in row["tools"]]
    fails = sum(row["tools"][NO_TOOL]["status"] != "success" for row in seen)
    return [name, str(len(rows)), *cells, _cell(rows, TOOLS), _share(fails, len(seen), len(rows))]


def _cell(rows: Sequence[Row], tools: Sequence[str]) -> str:
    """How many kernels one of the tools reports, of those that all of them were given or that one
    of them reports."""
    found = [row for row in rows if any(said(row, tool) for tool in tools)]
    given = [row for row in rows if row in found or all(tool in row["tools"] for tool in tools)]
    return _share(len(found), len(given), len(rows))


def _share(count: int, given: int, whole: int) -> str:
    if given == whole:
        return str(count)
    return f"{count} of {given}" if given else "not run"


def said(row: Row, tool: str) -> list[str]:
    """What a tool says of a kernel, besides what the driver answers to all."""
    texts = row["tools"].get(tool, {}).get("said", ())
    return [text for text in texts if not text.startswith(API_ERROR)]


def _places(rows: Sequence[Row]) -> str:
    """How many reports name the line that is wrong."""
    told = [(tool, row) for row in rows for tool in TOOLS if said(row, tool)]
    named = sum(row["tools"][tool]["at_line"] for tool, row in told)
    return f"Of the {len(told)} reports of the tools {named} name the line of the mistake."


def _words(rows: Sequence[Row]) -> list[str]:
    """What the tools say, and of how many kernels."""
    lines = []
    for tool in TOOLS:
        heads = Counter(
            text for row in rows for text in {_SIZE.sub("", text) for text in said(row, tool)}
        )
        order = sorted(heads, key=lambda text: (-heads[text], text))
        lines += [[tool, text, str(heads[text])] for text in order]
    return table(["tool", "what it says", "kernels"], lines, left=2)
