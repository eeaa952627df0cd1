# SPDX-License-Identifier: Apache-2.0
"""Stored results found by what they contain, whatever their files are called."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flash_attention.errors import UnsupportedError
from flash_attention.files import reading
from flash_attention.tools.bench.grid_record import grid_rows

LADDER, GRID, CANDIDATES, TIMINGS = "ladder", "grid", "candidates", "timings"
SUFFIXES = (".json", ".jsonl", ".txt")
EMULATED, PROFILE, PEAKS, OTHER = "emulated", "profile", "peaks", "other"


@dataclass(frozen=True)
class Stored:
    """One results file. `kind` is one of the words above; `record["rows"]` are its rows."""

    path: Path
    kind: str
    record: Mapping[str, Any]


def read_folder(folder: Path, *extra: Path) -> tuple[Stored, ...]:
    """Every results file of a folder, by name, and then the `extra` ones."""
    if not folder.is_dir():
        raise UnsupportedError(f"{folder} is no folder; give the one that holds the results files")
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    if not files and not extra:
        raise UnsupportedError(
            f"{folder} holds no results (*.json, *.jsonl); `flash-attention ladder run --json` "
            "writes some"
        )
    return tuple(read_file(path) for path in (*files, *extra))


def read_file(path: Path) -> Stored:
    """One results file; JSON lines become a record whose rows they are, text one that holds it."""
    with reading(path, "a results file"):
        text = path.read_text()
        if path.suffix == ".txt":
            return Stored(path, OTHER, {"text": text})
        lines = path.suffix == ".jsonl"
        record = {"rows": list(_json_lines(text))} if lines else json.loads(text)
    return Stored(path, kind_of(record), record if isinstance(record, dict) else {})


def _json_lines(text: str) -> Iterator[Any]:
    """The lines that are JSON; the last of a process that was killed is not."""
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def kind_of(record: Any) -> str:
    """Which measurement a record holds."""
    if not isinstance(record, dict):
        return OTHER
    if "peak" in record:
        return PEAKS
    rows = record.get("rows") or record.get("entries")
    if not rows or not all(isinstance(row, dict) for row in rows):
        return OTHER
    if {"contender", "tflops"} <= rows[0].keys():
        return LADDER
    if {"rung", "emulated"} <= rows[0].keys():
        return EMULATED
    if {"rung", "kcycles"} <= rows[0].keys():
        return PROFILE
    if {"point", "config"} <= rows[0].keys() or {"problem", "config"} <= rows[0].keys():
        return TIMINGS
    if "grid" not in record:
        return OTHER
    try:
        return GRID if all(row.selected for row in grid_rows(record)) else CANDIDATES
    except TypeError:
        return OTHER  # a grid of something else than self-attention


def of_kind(stored: Iterable[Stored], kind: str) -> list[Stored]:
    """The files of one kind, the newest first."""
    found = [one for one in stored if one.kind == kind]
    return sorted(found, key=lambda one: str(one.record.get("date", "")), reverse=True)


def newest(stored: Iterable[Stored], kind: str) -> Stored | None:
    """The newest file of one kind; of one day, the first by name."""
    return next(iter(of_kind(stored, kind)), None)
