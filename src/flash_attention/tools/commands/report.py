# SPDX-License-Identifier: Apache-2.0
"""`flash-attention report`."""

from __future__ import annotations

from pathlib import Path

from flash_attention.files import write_whole
from flash_attention.ladder import get_ladder
from flash_attention.tools.bench.stored import read_folder
from flash_attention.tools.commands.console import output
from flash_attention.tools.commands.ladder.diff import source_diff
from flash_attention.tools.commands.ladder.listing import change_of
from flash_attention.tools.report import RungText, render_page


def report(
    *,
    results: Path,
    out: Path,
    tuner: Path | None,
) -> None:
    """One HTML page of everything that was measured: it needs no network and no other file."""
    page = render_page(read_folder(results, *([tuner] if tuner else [])), rung_texts())
    write_whole(out, page.text)
    for sentence in page.missing:
        output.print(f"left out: {sentence}", markup=False, highlight=False)
    size = len(page.text.encode()) / 1024
    output.print(f"report: {out} ({size:.0f} KiB)", markup=False, highlight=False)


def rung_texts() -> tuple[RungText, ...]:
    """The ladder's ideas, changes and source."""
    rungs = get_ladder()
    return tuple(
        RungText(
            rung.number,
            rung.name,
            rung.idea,
            change_of(before, rung),
            source_diff(before, rung) if before else "",
            rung.config.default_arch.name,
        )
        for before, rung in zip((None, *rungs), rungs, strict=False)
    )
