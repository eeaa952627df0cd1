# SPDX-License-Identifier: Apache-2.0
"""Tables as JSON that people read and merge: one line an entry, every field checked on load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from flash_attention.call.dtype import DType
from flash_attention.choose.dense import DenseProblem
from flash_attention.choose.table import Entry, Table
from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.families.parse import parse_kernel_config
from flash_attention.files import write_whole

SCHEMA = 1
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "str": (str,),
    "DType": (str,),
    "KernelConfig": (str,),
}


def save_table(table: Table, path: Path) -> None:
    """Write a table; a reader sees the old file or the new one."""
    lines = ",\n".join(f"  {json.dumps(entry_json(entry))}" for entry in table.entries)
    text = f'{{\n "schema": {SCHEMA},\n "device": {json.dumps(table.device)},\n "entries": ['
    text += f"\n{lines}\n ]\n}}\n" if table.entries else "]\n}\n"
    write_whole(path, text)


def load_table(path: Path) -> Table:
    """Read a table; an entry whose config this version does not know becomes a note."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UnsupportedError(f"{path} is not a table: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("entries"), list):
        raise UnsupportedError(f"{path} is not a table: no list of entries in it")
    if data.get("schema") != SCHEMA:
        raise UnsupportedError(
            f"{path} has table schema {data.get('schema')!r}, this version reads {SCHEMA};"
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
    """An entry as JSON."""
    values = {f.name: getattr(entry, f.name) for f in fields(Entry)}
    return {
        **values,
        "problem": problem_json(entry.problem),
        "config": entry.config.short_form(),
    }


def read_entry(data: object) -> Entry:
    """The entry of JSON; UnsupportedError says which field is wrong, KernelConfigError that this
    version has no such config."""
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
    """A problem as JSON."""
    values = {f.name: getattr(problem, f.name) for f in fields(DenseProblem)}
    return {**values, "dtype": problem.dtype.name}


def read_problem(data: object) -> DenseProblem:
    """The problem of JSON; UnsupportedError says which field is wrong."""
    values = checked_fields(data, DenseProblem)
    for name, value in values.items():
        if type(value) is int and value < 1:
            raise UnsupportedError(f"{name} is {value}; it is at least 1")
    if values["heads"] % values["heads_k"]:
        raise UnsupportedError(
            f"heads is {values['heads']}, no multiple of heads_k, which is {values['heads_k']}"
        )
    return DenseProblem(**{**values, "dtype": DType.from_string(values["dtype"])})


def checked_fields(data: object, kind: Any, nested: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a dataclass out of a JSON object, each there and of its type."""
    if not isinstance(data, Mapping):
        raise UnsupportedError(f"{data!r} is no JSON object")
    names = [f.name for f in fields(kind)]
    if unknown := sorted(set(data) - set(names)):
        raise UnsupportedError(f"unknown field {unknown[0]!r}; there are {', '.join(names)}")
    for f in fields(kind):
        if f.name not in data:
            raise UnsupportedError(f"{f.name} is missing; there are {', '.join(names)}")
        value = data[f.name]
        if f.name not in nested and (
            not isinstance(value, allowed := _TYPES[str(f.type)])
            or (isinstance(value, bool) and bool not in allowed)
        ):
            raise UnsupportedError(f"{f.name} is {value!r}; a {f.type} is needed")
    return dict(data)
