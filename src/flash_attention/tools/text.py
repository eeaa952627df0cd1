# SPDX-License-Identifier: Apache-2.0
"""Words that reports on a call share."""

from __future__ import annotations

from collections.abc import Sequence

from flash_attention.call.problem import Problem

ReportRow = tuple[str, str]
"""A name and a line; neighbours of one name belong together."""


def aligned(rows: Sequence[ReportRow]) -> str:
    """Names in one column, each said once, and lines in the other."""
    width = max(len(name) for name, _ in rows) + 1
    return "\n".join(f"{name:<{width}}{line}" for name, line in said_once(rows))


def said_once(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """The rows with a name only where it changes."""
    before = ["", *(name for name, _ in rows)]
    return [
        ("" if name == last else name, line)
        for (name, line), last in zip(rows, before, strict=False)
    ]


def described(problem: Problem) -> str:
    """A problem in one line."""
    heads = f"{problem.heads} heads"
    if problem.heads_k != problem.heads:
        heads += f" ({problem.heads_k} of k and v)"
    width = f"d {problem.d_head}"
    if problem.d_v != problem.d_head:
        width += f" ({problem.d_v} of v)"
    longest = "up to " if problem.per_batch else ""
    words = {
        "causal": problem.causal,
        f"window {problem.window}": problem.window is not None,
        f"softcap {problem.softcap:g}": problem.softcap > 0,
        "sinks": problem.sinks,
        f"pages of {problem.page_keys} keys": problem.page_keys > 0,
    }
    features = "".join(f", {word}" for word, on in words.items() if on)
    dtype = str(problem.dtype).removeprefix("torch.")
    return (
        f"batch {problem.batch}, {longest}{problem.seq_q} x {problem.seq_k} queries and keys,"
        f" {heads}, {width}, {dtype}{features}"
    )
