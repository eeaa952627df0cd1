# SPDX-License-Identifier: Apache-2.0
"""Stored results found by what they contain, whatever their files are called."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flash_attention.choose.dense import DenseProblem
from flash_attention.errors import UnsupportedError, quoted
from flash_attention.files import (
    checked_fields,
    checked_rows,
    naming,
    parse_json,
    read_json,
    read_text,
)
from flash_attention.tools.bench.grid_record import check_facts, grid_rows
from flash_attention.tools.bench.grid_run import GridRow

LADDER, GRID, CANDIDATES, TIMINGS = "ladder", "grid", "candidates", "timings"
EMULATED, PROFILE, PEAKS, OTHER = "emulated", "profile", "peaks", "other"
WHAT = "a results file"


@dataclass(frozen=True)
class Stored:
    """One results file. `kind` is one of the words above; `record["rows"]` are its rows."""

    path: Path
    kind: str
    record: Mapping[str, Any]


@dataclass(frozen=True)
class EmulatedRow:
    """What compiler and emulator say of one rung."""

    rung: int
    name: str
    arch: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    ctas_per_sm: int
    limited_by: str
    same_code: bool
    language: str
    opcodes: Mapping[str, float]
    mix: Mapping[str, float]
    emulated: Mapping[str, float]


@dataclass(frozen=True)
class Peaks:
    """What a device reaches: the roofs of a roofline."""

    bf16_matmul_tflops: float
    copy_tb_s: float


def read_folder(folder: Path, *extra: Path) -> tuple[Stored, ...]:
    """Every results file of a folder, by name, and then the `extra` ones."""
    if not os.path.isdir(folder):
        raise UnsupportedError(f"{folder} is no folder; give the one that holds the results files")
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".jsonl"))
    if not files and not extra:
        raise UnsupportedError(
            f"{folder} holds no results (*.json, *.jsonl); `flash-attention ladder run --json` "
            "writes some"
        )
    return tuple(read_file(path) for path in (*files, *extra))


def read_file(path: Path) -> Stored:
    """One results file; a file of JSON lines becomes a record whose rows are its lines."""
    if path.suffix == ".jsonl":
        record = {"rows": list(_json_lines(read_text(path, WHAT)))}
    else:
        record = read_json(path, WHAT)
    kind = kind_of(record)
    if kind in _CHECKS:
        with naming(path, WHAT):
            _CHECKS[kind](record)
    return Stored(path, kind, record if isinstance(record, dict) else {})


def _json_lines(text: str) -> Iterator[Any]:
    """The lines that are JSON; the last of a process that was killed is not."""
    for line in text.splitlines():
        try:
            yield parse_json(line)
        except UnsupportedError:
            continue


def kind_of(record: Any) -> str:
    """Which measurement a record holds, by the names of its fields."""
    if not isinstance(record, dict):
        return OTHER
    if "peak" in record:
        return PEAKS
    rows = record.get("rows") or record.get("entries")
    if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
        return OTHER
    if {"contender", "tflops"} <= rows[0].keys():
        return LADDER
    if {"rung", "emulated"} <= rows[0].keys():
        return EMULATED
    if {"rung", "kcycles"} <= rows[0].keys():
        return PROFILE
    if {"point", "config"} <= rows[0].keys() or {"problem", "config"} <= rows[0].keys():
        return TIMINGS
    known = {f.name for f in fields(GridRow)}
    if "grid" not in record or not {"d", "seq", "config"} <= rows[0].keys() <= known:
        return OTHER  # or a grid of something else than self-attention
    return GRID if all(row.get("selected") for row in rows) else CANDIDATES


def _check_grid(record: Mapping[str, Any]) -> None:
    check_facts(record)
    grid_rows(record)


def _check_emulated(record: Mapping[str, Any]) -> None:
    rows = checked_rows(record["rows"], lambda row: checked_fields(row, EmulatedRow))
    shape = record.get("shape")
    if not isinstance(shape, list) or len(shape) != 4:
        raise UnsupportedError(f"shape is {quoted(shape)}; (batch, seq, heads, d_head) is needed")
    if not isinstance(record.get("dtype"), str):
        raise UnsupportedError(f"dtype is {quoted(record.get('dtype'))}; a str is needed")
    counters = rows[0]["emulated"].keys()
    for row in rows:
        if row["emulated"].keys() != counters:
            raise UnsupportedError(f"rung {row['rung']} has other counters than the first row")
        if missing := _DRAWN - counters:
            raise UnsupportedError(f"{sorted(missing)[0]} is missing of what was emulated")
        if not row["emulated"]["allowed"] > 0:
            raise UnsupportedError(f"rung {row['rung']} is allowed no error")


_DRAWN = {
    "error",
    "allowed",
    "instructions / key block",
    "wavefronts / needed",
    "sectors / request",
}


def _check_profile(record: Mapping[str, Any]) -> None:
    for row in record["rows"]:
        if type(row.get("rung")) is not int or not isinstance(row.get("name"), str):
            raise UnsupportedError(f"{quoted(row)} has no rung and name")
        if row.keys() != record["rows"][0].keys():
            raise UnsupportedError(f"rung {row['rung']} has other counters than the first row")
        for name, value in row.items():
            if name != "name" and not _is_number(value):
                raise UnsupportedError(f"{name} is {quoted(value)}; a number is needed")


def _check_peaks(record: Mapping[str, Any]) -> None:
    values = checked_fields(record["peak"], Peaks)
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise UnsupportedError(f"{name} is {value}; it must be positive")
    if not isinstance(record.get("device"), str):
        raise UnsupportedError("it does not say which device it is of")


def _check_timings(record: Mapping[str, Any]) -> None:
    sizes = {f.name for f in fields(DenseProblem) if f.type == "int"}
    for row in record.get("rows") or record["entries"]:
        problem = row.get("point") or row.get("problem")
        if not isinstance(problem, dict):
            raise UnsupportedError(f"{quoted(row)} has no problem")
        for name in sizes & problem.keys():
            if type(problem[name]) is not int or problem[name] < 0:
                raise UnsupportedError(f"{name} is {quoted(problem[name])}; an int is needed")
        for name in ("config", "winner", "heuristic"):
            if name in row and not isinstance(row[name], str):
                raise UnsupportedError(f"{name} is {quoted(row[name])}; a str is needed")
        for name in ("ms", "heuristic_ms", "repeats", "relative"):
            if not _is_number(row.get(name) or 0):
                raise UnsupportedError(f"{name} is {quoted(row[name])}; a number is needed")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_CHECKS: dict[str, Callable[[Mapping[str, Any]], None]] = {
    GRID: _check_grid,
    CANDIDATES: _check_grid,
    EMULATED: _check_emulated,
    PROFILE: _check_profile,
    PEAKS: _check_peaks,
    TIMINGS: _check_timings,
}
"""What each kind must hold; a ladder is read by `results.load`."""


def of_kind(stored: Iterable[Stored], kind: str) -> list[Stored]:
    """The files of one kind, the newest first."""
    found = [one for one in stored if one.kind == kind]
    return sorted(found, key=lambda one: str(one.record.get("date", "")), reverse=True)


def newest(stored: Iterable[Stored], kind: str) -> Stored | None:
    """The newest file of one kind; of one day, the first by name."""
    return next(iter(of_kind(stored, kind)), None)
