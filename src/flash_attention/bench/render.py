# SPDX-License-Identifier: Apache-2.0
"""Writes the measured ladder into README.md: `python -m flash_attention.bench.render README.md R`.

The table between the markers and the plot beside it are made from one results file R, nothing else.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from flash_attention.bench import results
from flash_attention.bench.comparison import Comparison, compare
from flash_attention.errors import UnsupportedError

BEGIN = "<!-- ladder:begin -->"
END = "<!-- ladder:end -->"
PLOT = Path("docs/ladder.png")


def block(measured: results.Results) -> str:
    """The README's measured section: where, table, plot."""
    comparison = compare(measured)
    return "\n".join(
        (
            BEGIN,
            _setting(measured),
            "",
            *_table(comparison),
            "",
            f"![speed of each rung beside FlashAttention-2]({PLOT.as_posix()})",
            END,
        )
    )


def replace_block(text: str, new_block: str) -> str:
    """`text` with its marked block replaced by `new_block`."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UnsupportedError(f"no {BEGIN} ... {END} block to write the ladder into")
    return before + new_block + after


def marked_block(text: str) -> str:
    """The block as it stands in `text`, markers included."""
    _, begin, rest = text.partition(BEGIN)
    inside, end, _ = rest.partition(END)
    if not begin or not end:
        raise UnsupportedError(f"no {BEGIN} ... {END} block")
    return begin + inside + end


def _setting(measured: results.Results) -> str:
    commit = f", commit {measured.commit}" if measured.commit else ""
    return (
        f"{measured.device}, driver {measured.driver}, NVRTC {measured.nvrtc}, "
        f"torch {measured.torch}, {measured.date}{commit}. "
        f"{measured.dtype}, {measured.n_heads} heads of {measured.d_head}; forward, no mask. "
        "A cell is TFLOP/s and percent of FA2, which is torch's SDPA with its FlashAttention-2 "
        "backend; medians, L2 cold, contenders taken in turn. "
        "The mean is harmonic over the lengths."
    )


def _table(comparison: Comparison) -> list[str]:
    shapes = [f"{batch} x {seq_len}" for batch, seq_len in comparison.shapes]
    header = ["rung", "what changes", *shapes, "mean"]
    rule = ["---", "---", *["---:"] * (len(shapes) + 1)]
    lines = [_line(header), _line(rule)]
    for entry in comparison.entries:
        cells = [
            f"{speed:.0f} ({100 * entry.of_fa2[i]:.0f}%)" for i, speed in enumerate(entry.tflops)
        ]
        mean = f"{entry.mean_tflops:.0f} (**{100 * entry.mean_of_fa2:.1f}%**)"
        number = f"{entry.number} " if entry.number is not None else ""
        change = f"`{entry.change}`" if entry.change else ""
        lines.append(_line([f"{number}{entry.name}", change, *cells, mean]))
    return lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m flash_attention.bench.render")
    parser.add_argument("readme", type=Path)
    parser.add_argument("results", type=Path)
    given = parser.parse_args(arguments)
    measured = results.load(given.results)
    text = replace_block(given.readme.read_text(), block(measured))

    from flash_attention.bench import plot

    plot.save(plot.speeds(compare(measured)), given.readme.parent / PLOT)
    given.readme.write_text(text)


if __name__ == "__main__":
    main()
