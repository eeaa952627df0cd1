# SPDX-License-Identifier: Apache-2.0
"""The file of a measured grid: where, by which command, every row; and the rows as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

from flash_attention.errors import UnsupportedError
from flash_attention.files import (
    FilePath,
    naming,
    read_json,
    write_record,
    write_whole,
)
from flash_attention.records import read_part, read_value
from flash_attention_workbench.bench.grid_run import GridRow


@dataclass(frozen=True)
class Grid:
    """What a file needs to have. It says more of where it was measured, and what was refused."""

    device: str
    date: str
    commit: str | None
    command: str
    grid: str
    dtype: str
    rows: tuple[GridRow, ...]


@dataclass(frozen=True)
class GridRecord:
    """What was read back of a file."""

    facts: dict[str, Any]  # device, driver, commit, date, command, grid, dtype, ...
    rows: tuple[GridRow, ...]


def save_json(
    path: FilePath,
    facts: dict[str, Any],
    rows: Sequence[GridRow],
    refused: Sequence[dict[str, Any]],
) -> None:
    """Writes a grid, which may not be through yet."""
    record = {**facts, "rows": [asdict(row) for row in rows], "refused": list(refused)}
    write_record(path, record)


class OfGrid(Protocol):
    """A record that says which grid was measured."""

    @property
    def grid(self) -> str: ...


Record = TypeVar("Record", bound=OfGrid)


def measured(record: Mapping[str, Any], kind: type[Record], grid: str) -> Record:
    """The record of a file that was read, if it is one of this grid."""
    read: Record = read_part(record, kind)
    if read.grid != grid:
        raise UnsupportedError(f"the grid is {read.grid!r}, and {grid!r} is needed")
    return read


def load_measured(path: FilePath, kind: type[Record], grid: str, what: str) -> Record:
    """Reads a record of a grid. `what` says what the file should be."""
    record = read_json(path, what)
    with naming(path, what):
        return measured(record, kind, grid)


def load_json(path: FilePath) -> GridRecord:
    """Reads what `save_json` wrote."""
    what = "a measured grid, as `flash-attention bench --json` writes it"
    record = read_json(path, what)
    with naming(path, what):
        rows = read_part(record, Grid).rows
        return GridRecord({k: v for k, v in record.items() if k != "rows"}, rows)


def grid_rows(record: Mapping[str, Any]) -> tuple[GridRow, ...]:
    """The rows of a record that was read."""
    rows: tuple[GridRow, ...] = read_value("rows", record.get("rows"), tuple[GridRow, ...])
    return rows


def save_csv(path: FilePath, rows: Sequence[GridRow]) -> None:
    """Writes a line a row, with a column for the milliseconds of each peer."""
    peers = list(dict.fromkeys(name for row in rows for name in row.peers))
    apart = list(dict.fromkeys(name for row in rows for name in row.beside))
    text = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        fields = asdict(row)
        times = fields.pop("peers")
        fields["lengths"] = " ".join(map(str, row.lengths))
        beside = fields.pop("beside")
        fields |= {f"ours_beside_{name}_ms": beside.get(name) for name in apart}
        fields |= {f"{name}_ms": times.get(name) for name in peers}
        if writer is None:
            writer = csv.DictWriter(text, list(fields))
            writer.writeheader()
        writer.writerow(fields)
    write_whole(path, text.getvalue())
