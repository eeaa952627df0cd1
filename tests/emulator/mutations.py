# SPDX-License-Identifier: Apache-2.0
"""Plants the listed mistakes, runs them, and writes the tables of what caught them:

python -m tests.emulator.mutations docs/emulator.md
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.render.blocks import replace_block, table, wrap
from tests.emulator import ampere_mutations, decode_mutations, hopper_mutations
from tests.emulator.planting import Mutation, catch

TABLES: dict[str, Sequence[Mutation]] = {
    "mutations": ampere_mutations.MUTATIONS,
    "hopper-mutations": hopper_mutations.MUTATIONS,
    "decode-mutations": decode_mutations.MUTATIONS,
}
HEADER = ("mistake", "where", "rung", "caught by", "also reported", "output")


def row(mutation: Mutation) -> list[str]:
    """A mistake and what caught it; a scene that is no rung has no number."""
    seen = catch(mutation)
    return [
        mutation.name,
        ", ".join(dict.fromkeys(f"`{edit.header}`" for edit in mutation.edits)) or "launch",
        str(mutation.scene.rung or ""),
        mutation.caught_by,
        ", ".join(sorted(seen.kinds - {mutation.caught_by})),
        "right" if seen.output_right else "wrong",
    ]


def block(marker: str) -> str:
    """A table as it stands in the documentation, without a column of rungs if there are none."""
    mutations = TABLES[marker]
    shown = [i for i, name in enumerate(HEADER) if name != "rung" or mutations[0].scene.rung]
    lines = [[cells[i] for i in shown] for cells in (HEADER, *map(row, mutations))]
    return wrap(marker, table(lines[0], lines[1:], left=len(shown)))


def main(document: Path) -> None:
    text = document.read_text()
    for marker in TABLES:
        text = replace_block(text, marker, block(marker))
    document.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
