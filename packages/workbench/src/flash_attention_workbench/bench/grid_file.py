# SPDX-License-Identifier: Apache-2.0
"""A grid in a text file, with one problem per line.

batch=4 heads=32 heads_k=8 seq=8192 d=128 causal   # a comment
heads=16 lengths=4096,1024,512 d=128 causal        # packed sequences
batch=16 heads=32 heads_k=8 seq=8192 seq_q=1 d=128 # one query per sequence
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flash_attention.call.tensors import MAX_ROWS
from flash_attention.errors import UnsupportedError, quoted
from flash_attention.files import read_text
from flash_attention_workbench.bench.choices import checked_choice
from flash_attention_workbench.bench.grid import Point

EXAMPLE = "batch=4 heads=32 heads_k=8 seq=8192 d=128 causal"
NUMBERS = {
    "batch": "batch",
    "heads": "heads",
    "heads_k": "heads_k",
    "seq": "seq_len",
    "seq_q": "seq_q",
    "d": "d_head",
    "window": "window",
}
WORDS = (*NUMBERS, "lengths", "causal")


def read_grid(path: Path) -> list[Point]:
    """The problems of a file, in their order."""
    points = []
    for number, line in enumerate(read_lines(path, "a file of problems"), 1):
        if line:
            try:
                points.append(read_point(line))
            except UnsupportedError as error:
                raise UnsupportedError(f"{path}, line {number}: {error}") from None
    if not points:
        raise UnsupportedError(f"{path} names no problem; one a line, such as {EXAMPLE!r}")
    return points


def read_lines(path: Path, what: str) -> list[str]:
    """Lines of a text file without what follows a #."""
    text = read_text(path, what)
    return [line.partition("#")[0].strip() for line in text.splitlines()]


def read_point(line: str) -> Point:
    """The problem of one line."""
    fields: dict[str, Any] = {"causal": False, "batch": 1}
    for word in line.split():
        name, _, value = word.partition("=")
        checked_choice("word", name, WORDS)
        if name == "causal":
            fields["causal"] = True
        elif name == "lengths":
            fields["lengths"] = tuple(whole_number(name, text) for text in value.split(","))
        else:
            fields[NUMBERS[name]] = whole_number(name, value)
    if lengths := fields.get("lengths"):
        fields |= {"seq_len": max(lengths), "batch": len(lengths)}
    if missing := [n for n in ("heads", "seq", "d") if NUMBERS[n] not in fields]:
        raise UnsupportedError(f"{', '.join(missing)} missing in {line!r}; such as {EXAMPLE!r}")
    return _checked(Point(**fields))


def whole_number(name: str, text: str) -> int:
    """Read a size, from 1 to what a tensor may have. `name` is that of an option."""
    number = int(text) if text.isdecimal() and len(text) <= len(str(MAX_ROWS)) else 0
    if not 0 < number <= MAX_ROWS:
        raise UnsupportedError(
            f"{name} is {quoted(text)}; pass a whole number from 1 to {MAX_ROWS}"
        )
    return number


def _checked(point: Point) -> Point:
    if point.heads % point.kv_heads:
        raise UnsupportedError(f"heads {point.heads} is no multiple of heads_k {point.heads_k}")
    if point.queries > point.seq_len:
        raise UnsupportedError(f"seq_q {point.seq_q} is more than seq {point.seq_len}")
    if point.window and not point.causal:
        raise UnsupportedError("a window ends at its query: say causal too")
    if point.lengths and (point.seq_q or point.window):
        raise UnsupportedError("packed sequences (lengths) have no seq_q and no window here")
    return point
