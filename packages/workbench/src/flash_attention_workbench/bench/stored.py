# SPDX-License-Identifier: Apache-2.0
"""Stored results found by what they contain, whatever their files are called."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flash_attention.errors import UnsupportedError, quoted
from flash_attention.files import (
    MAX_MEASURED,
    check_positive,
    checked_fields,
    checked_rows,
    naming,
    parse_json,
    read_json,
    read_text,
)
from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.grid_record import check_facts, grid_rows
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
    check_facts(record)
    grid_rows(record)


def _check_emulated(record: Mapping[str, Any]) -> None:
    rows = checked_rows(record["rows"], lambda row: checked_fields(row, EmulatedRow))
    shape = record.get("shape")
    if not isinstance(shape, list) or len(shape) != 4:
        raise UnsupportedError(f"shape is {quoted(shape)}; (batch, seq, heads, d_head) is needed")
    if not isinstance(record.get("dtype"), str):
        raise UnsupportedError(f"dtype is {quoted(record.get('dtype'))}; a str is needed")
    counted = rows[0]["emulated"].keys()
    if missing := _DRAWN - counted:
        raise UnsupportedError(f"{min(missing)!r} is missing of what was emulated")
    for row in rows:
        _check_counters(row["rung"], row["emulated"], counted)
        drawn = {name: row["emulated"][name] for name in _DRAWN - {"error"}}
        check_positive(registers=row["registers"], **drawn)


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
        counted = {name: value for name, value in row.items() if name != "name"}
        _check_counters(row["rung"], counted, record["rows"][0].keys() - {"name"})


def _check_counters(rung: int, counted: Mapping[str, Any], names: Set[str]) -> None:
    """Every rung has the same counters, and they are numbers."""
    if counted.keys() != names:
        raise UnsupportedError(f"rung {rung} has other counters than the first row")
    for name, value in counted.items():
        if not _is_number(value):
            raise UnsupportedError(f"{name} of rung {rung} is {quoted(value)}; a number is needed")


def _check_peaks(record: Mapping[str, Any]) -> None:
    check_positive(**checked_fields(record["peak"], Peaks))
    if not isinstance(record.get("device"), str):
        raise UnsupportedError("it does not say which device it is of")


def _check_timings(record: Mapping[str, Any]) -> None:
    for row in record.get("rows", ()):
        decision = row.get("kind") == "decision"
        _check_timed(row, words=("winner",) if decision else ("config",), times=())
    for entry in record.get("entries", ()):
        _check_timed(entry, words=("config", "heuristic"), times=("ms", "heuristic_ms"))


def _check_timed(row: object, words: Iterable[str], times: Iterable[str]) -> None:
    """What is there of a problem, a config, and how long it took."""
    if not isinstance(row, dict):
        raise UnsupportedError(f"{quoted(row)} is no JSON object")
    problem = row.get("point") or row.get("problem")
    if not isinstance(problem, dict):
        raise UnsupportedError(f"{quoted(row)} has no problem")
    for name, value in problem.items():
        if name in _SIZES and (type(value) is not int or not 0 <= value <= MAX_MEASURED):
            raise UnsupportedError(f"{name} is {quoted(value)}; an int from 0 on is needed")
    for name in words:
        if not isinstance(row.get(name), str):
            raise UnsupportedError(f"{name} is {quoted(row.get(name))}; a str is needed")
    for name in ("ms", "heuristic_ms", "relative", "repeats"):
        value = row.get(name)
        if (value is not None or name in times) and not _is_number(value):
            raise UnsupportedError(f"{name} is {quoted(value)}; a number is needed")
        if value is not None and name != "repeats":
            check_positive(**{name: value})


_SIZES = {"seq_len", "seq", "seq_q", "seq_k", "d_head", "d_v", "d", "batch", "heads", "heads_k"}


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= MAX_MEASURED


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
