# SPDX-License-Identifier: Apache-2.0
"""Stored results found by what they contain, whatever their files are called."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flash_attention.errors import UnsupportedError, quoted
from flash_attention.files import naming, parse_json, read_json, read_text
from flash_attention.records import (
    Count,
    Finite,
    Positive,
    Size,
    read_part,
    read_record,
    read_value,
)
from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.grid_record import Grid
from flash_attention_workbench.bench.grid_run import GridRow

LADDER, GRID, CANDIDATES, TIMINGS = "ladder", "grid", "candidates", "timings"
GRADIENTS = "gradients"  # a grid of backward or of both passes
SUFFIXES = (".json", ".jsonl", ".txt")
EMULATED, PROFILE, PEAKS, OTHER = "emulated", "profile", "peaks", "other"
BACKWARD_LADDER, BACKWARD_EMULATED = "backward ladder", "backward emulated"
WHAT = "a results file"
FORWARD = Measured.FORWARD.name


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
    registers: Size
    spilled_bytes: int
    shared_bytes: int
    ctas_per_sm: int
    limited_by: str
    same_code: bool
    language: str
    opcodes: Mapping[str, Finite]
    mix: Mapping[str, Finite]
    emulated: Mapping[str, Finite]


@dataclass(frozen=True)
class Peaks:
    """What a device reaches: the roofs of a roofline."""

    bf16_matmul_tflops: Positive
    copy_tb_s: Positive


@dataclass(frozen=True)
class Timed:
    """A line of a tuner's store: a config at a problem."""

    config: str
    ms: Positive | None = None
    relative: Positive | None = None
    repeats: Finite | None = None


@dataclass(frozen=True)
class Chosen:
    """An entry of a table."""

    config: str
    heuristic: str
    ms: Positive
    heuristic_ms: Positive


def read_folder(folder: Path, *extra: Path) -> tuple[Stored, ...]:
    """Every results file of a folder, by name, and then the `extra` ones."""
    if not os.path.isdir(folder):
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
    if path.suffix == ".txt":
        return Stored(path, OTHER, {"text": read_text(path, WHAT)})
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
    backward = record.get("pass_") == "backward"
    if {"contender", "tflops"} <= rows[0].keys():
        return BACKWARD_LADDER if backward else LADDER
    if {"rung", "emulated"} <= rows[0].keys():
        return BACKWARD_EMULATED if backward else EMULATED
    if {"rung", "kcycles"} <= rows[0].keys():
        return PROFILE
    if {"point", "config"} <= rows[0].keys() or {"problem", "config"} <= rows[0].keys():
        return TIMINGS
    known = {f.name for f in fields(GridRow)}
    if "grid" not in record or not {"d", "seq", "config"} <= rows[0].keys() <= known:
        return OTHER  # or a grid of something else than self-attention
    if any(row.get("measured", FORWARD) != FORWARD for row in rows):
        return GRADIENTS
    return GRID if all(row.get("selected") for row in rows) else CANDIDATES


def _check_grid(record: Mapping[str, Any]) -> None:
    read_part(record, Grid)


def _check_emulated(record: Mapping[str, Any]) -> None:
    rows = read_value("rows", record["rows"], tuple[EmulatedRow, ...])
    shape = read_value("shape", record.get("shape"), tuple[Size, ...])
    read_value("dtype", record.get("dtype"), str)
    if len(shape) != 4:
        raise UnsupportedError(f"shape is {quoted(shape)}; (batch, seq, heads, d_head) is needed")
    counted = rows[0].emulated.keys()
    if missing := _DRAWN - counted:
        raise UnsupportedError(f"{min(missing)!r} is missing of what was emulated")
    for row in rows:
        _check_counters(row.rung, row.emulated, counted)
        for name in _DRAWN - {"error"}:
            read_value(name, row.emulated[name], Positive)


_DRAWN = {
    "error",
    "allowed",
    "instructions / key block",
    "wavefronts / needed",
    "sectors / request",
}


def _check_profile(record: Mapping[str, Any]) -> None:
    for row in record["rows"]:
        read_value("name", row.get("name"), str)
        counted = {name: value for name, value in row.items() if name != "name"}
        names = record["rows"][0].keys() - {"name"}
        _check_counters(read_value("rung", row.get("rung"), int), counted, names)


def _check_counters(rung: int, counted: Mapping[str, Any], names: Set[str]) -> None:
    """Every rung has the same counters, and they are numbers."""
    if counted.keys() != names:
        raise UnsupportedError(f"rung {rung} has other counters than the first row")
    for name, value in counted.items():
        read_value(f"{name} of rung {rung}", value, Finite)


def _check_peaks(record: Mapping[str, Any]) -> None:
    read_record(record["peak"], Peaks)
    read_value("device", record.get("device"), str)


def _check_timings(record: Mapping[str, Any]) -> None:
    for row in record.get("rows", ()):
        _check_sizes(row)
        if row.get("kind") == "decision":
            read_value("winner", row.get("winner"), str)
        else:
            read_part(row, Timed)
    for entry in record.get("entries", ()):
        _check_sizes(entry)
        read_part(entry, Chosen)


def _check_sizes(row: object) -> None:
    """What is there of the problem of a row: `point` in older files."""
    problem = isinstance(row, Mapping) and (row.get("point") or row.get("problem"))
    if not isinstance(problem, Mapping):
        raise UnsupportedError(f"{quoted(row)} has no problem")
    for name in _SIZES & problem.keys():
        read_value(name, problem[name], Count)


_SIZES = {"seq_len", "seq", "seq_q", "seq_k", "d_head", "d_v", "d", "batch", "heads", "heads_k"}

_CHECKS: dict[str, Callable[[Mapping[str, Any]], None]] = {
    GRID: _check_grid,
    CANDIDATES: _check_grid,
    GRADIENTS: _check_grid,
    EMULATED: _check_emulated,
    BACKWARD_EMULATED: _check_emulated,
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
