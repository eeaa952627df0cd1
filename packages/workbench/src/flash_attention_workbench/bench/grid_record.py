# SPDX-License-Identifier: Apache-2.0
"""The file of a measured grid: where, by which command, every row; and the rows as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flash_attention.call.tensors import MAX_ROWS
from flash_attention.errors import UnsupportedError, quoted
from flash_attention.files import (
    FilePath,
    check_positive,
    checked_fields,
    checked_rows,
    naming,
    read_json,
    write_record,
    write_whole,
)
from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.grid_run import GridRow

FACTS = ("device", "date", "commit", "command", "grid", "dtype")


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


def load_json(path: FilePath) -> GridRecord:
    """Reads what `save_json` wrote."""
    what = "a measured grid, as `flash-attention bench --json` writes it"
    record = read_json(path, what)
    with naming(path, what):
        check_facts(record)
        return GridRecord({k: v for k, v in record.items() if k != "rows"}, grid_rows(record))


def check_facts(record: object) -> None:
    """What is told of a measured grid besides its rows is there."""
    if not isinstance(record, dict):
        raise UnsupportedError(f"{quoted(record)} is no JSON object")
    for name in FACTS:
        if name not in record:
            raise UnsupportedError(f"{name} is missing; there must be {', '.join(FACTS)}, rows")
        unknown = name == "commit" and record[name] is None
        if not unknown and not isinstance(record[name], str):
            raise UnsupportedError(f"{name} is {quoted(record[name])}; a str is needed")


def grid_rows(record: Mapping[str, Any]) -> tuple[GridRow, ...]:
    """The rows of a record that was read."""
    return checked_rows(record.get("rows"), _row)


def _row(data: dict[str, Any]) -> GridRow:
    values = checked_fields(data, GridRow)
    row = GridRow(**{**values, "lengths": tuple(values.get("lengths", ()))})
    sizes = {"d": row.d, "seq": row.seq, "batch": row.batch, "heads": row.heads}
    check_positive(**sizes, ms=row.ms, tflops=row.tflops)
    check_positive(**row.peers)
    check_positive(**row.beside)
    if row.measured not in Measured.__members__:
        known = ", ".join(Measured.__members__)
        raise UnsupportedError(f"measured is {quoted(row.measured)}; there are {known}")
    for name in ("ratio", "gbps", "copy_gbps", "full_ms", "heuristic_ms", "deterministic_ms"):
        if (value := getattr(row, name)) is not None:
            check_positive(**{name: value})
    for name in ("heads_k", "seq_q", "window"):
        if not 0 <= getattr(row, name) <= MAX_ROWS:
            raise UnsupportedError(f"{name} is {getattr(row, name)}; it is 0 or more")
    check_positive(**{f"length {number}": length for number, length in enumerate(row.lengths, 1)})
    if row.seq_q > row.seq:
        raise UnsupportedError(f"seq_q {row.seq_q} is more than seq {row.seq}")
    return row


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
