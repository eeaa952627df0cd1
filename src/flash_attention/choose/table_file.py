# SPDX-License-Identifier: Apache-2.0
"""Tables as JSON files: one line per entry, so that they merge well. Loading checks every field."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from flash_attention.call.dtype import DType
from flash_attention.choose.dense import DenseProblem
from flash_attention.choose.table import Entry, Table
from flash_attention.errors import KernelConfigError, UnsupportedError, quoted
from flash_attention.families.parse import parse_kernel_config
from flash_attention.files import FilePath, checked_fields, read_json, write_whole

SCHEMA = 1


def save_table(table: Table, path: FilePath) -> None:
    """Write `table` to the file `path` as JSON.

    The file is replaced in one step, so that a reader sees either the old or the new table. Raises
    UnsupportedError if the file cannot be written.
    """
    lines = ",\n".join(f"  {json.dumps(entry_json(entry))}" for entry in table.entries)
    text = f'{{\n "schema": {SCHEMA},\n "device": {json.dumps(table.device)},\n "entries": ['
    text += f"\n{lines}\n ]\n}}\n" if table.entries else "]\n}\n"
    write_whole(path, text)


def load_table(path: FilePath) -> Table:
    """Return the table in the file `path`.

    An entry whose config this version does not have is left out and reported in the table's
    `notes`. Raises UnsupportedError if the file cannot be read or is not a table.
    """
    data = read_json(path, "a table")
    if not isinstance(data, dict) or not isinstance(data.get("entries"), list):
        raise UnsupportedError(f"{path} is not a table: no list of entries in it")
    if data.get("schema") != SCHEMA:
        raise UnsupportedError(
            f"{path} has table schema {quoted(data.get('schema'))}, this version reads {SCHEMA};"
            " tune again with `flash-attention tune`"
        )
    if not isinstance(data.get("device"), str):
        raise UnsupportedError(f"{path} does not say which device it is of")
    entries, notes = {}, []
    for number, item in enumerate(data["entries"], 1):
        try:
            entry = read_entry(item)
        except KernelConfigError as error:
            notes.append(f"entry {number} of {path} is ignored: {error}")
        except UnsupportedError as error:
            raise UnsupportedError(f"entry {number} of {path}: {error}") from None
        else:
            entries[entry.problem] = entry
    return Table(data["device"], tuple(entries[key] for key in sorted(entries)), tuple(notes))


def entry_json(entry: Entry) -> dict[str, Any]:
    """Convert an entry to JSON."""
    values = {f.name: getattr(entry, f.name) for f in fields(Entry)}
    return {
        **values,
        "problem": problem_json(entry.problem),
        "config": entry.config.short_form(),
    }


def read_entry(data: object) -> Entry:
    """Read an entry from JSON. Raises UnsupportedError for a wrong field, and KernelConfigError
    for a config that this version does not have."""
    values = checked_fields(data, Entry, nested=("problem",))
    problem = read_problem(values["problem"])
    for name in ("ms", "heuristic_ms"):
        if not 0 < values[name] < float("inf"):
            raise UnsupportedError(f"{name} is {values[name]}; a time is positive")
    config = parse_kernel_config(values["config"])
    if config.dtype is not problem.dtype or config.d_head < max(problem.d_head, problem.d_v):
        raise UnsupportedError(f"{config.short_form()} does not compute {problem}")
    return Entry(**{**values, "problem": problem, "config": config})


def problem_json(problem: DenseProblem) -> dict[str, Any]:
    """Convert a problem to JSON."""
    values = {f.name: getattr(problem, f.name) for f in fields(DenseProblem)}
    return {**values, "dtype": problem.dtype.name}


def read_problem(data: object) -> DenseProblem:
    """Read a problem from JSON. Raises UnsupportedError for a wrong field."""
    values = checked_fields(data, DenseProblem)
    for name, value in values.items():
        if type(value) is int and value < 1:
            raise UnsupportedError(f"{name} is {value}; it is at least 1")
    if values["heads"] % values["heads_k"]:
        raise UnsupportedError(
            f"heads is {values['heads']}, no multiple of heads_k, which is {values['heads_k']}"
        )
    return DenseProblem(**{**values, "dtype": DType.from_string(values["dtype"])})
