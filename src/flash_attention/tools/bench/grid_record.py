# SPDX-License-Identifier: Apache-2.0
"""The file of a measured grid: where, by which command, every row; and the rows as CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flash_attention.errors import UnsupportedError
from flash_attention.files import reading, write_record
from flash_attention.tools.bench.grid_run import GridRow


@dataclass(frozen=True)
class GridRecord:
    """What was read back of a file."""

    facts: dict[str, Any]  # device, driver, commit, date, command, grid, dtype, ...
    rows: tuple[GridRow, ...]


def save_json(
    path: Path,
    facts: dict[str, Any],
    rows: Sequence[GridRow],
    refused: Sequence[dict[str, Any]],
) -> None:
    """Writes a grid, which may not be through yet."""
    record = {**facts, "rows": [asdict(row) for row in rows], "refused": list(refused)}
    write_record(path, record)


def load_json(path: Path) -> GridRecord:
    """Reads what `save_json` wrote."""
    with reading(path, "a measured grid, as `flash-attention bench --json` writes it"):
        facts = json.loads(path.read_text())
        rows = tuple(grid_rows(facts))
        del facts["rows"]
        facts["grid"], facts["dtype"], facts["device"]
    if not rows:
        raise UnsupportedError(f"{path} holds no row: nothing was measured")
    return GridRecord(facts, rows)


def grid_rows(record: Mapping[str, Any]) -> list[GridRow]:
    """The rows of a record that was read."""
    return [GridRow(**{**row, "lengths": tuple(row.get("lengths", ()))}) for row in record["rows"]]


def save_csv(path: Path, rows: Sequence[GridRow]) -> None:
    """Writes a line a row, with a column for the milliseconds of each peer."""
    peers = list(dict.fromkeys(name for row in rows for name in row.peers))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for row in rows:
            fields = asdict(row)
            times = fields.pop("peers")
            fields["lengths"] = " ".join(map(str, row.lengths))
            fields |= {f"{name}_ms": times.get(name) for name in peers}
            if writer is None:
                writer = csv.DictWriter(file, list(fields))
                writer.writeheader()
            writer.writerow(fields)
