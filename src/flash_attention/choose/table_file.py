# SPDX-License-Identifier: Apache-2.0
"""Tables as JSON files: one line per entry, so that they merge well. Loading checks every field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from flash_attention.call.backward_call import Wanted
from flash_attention.call.dtype import DType
from flash_attention.choose.dense import DENSE, DenseBackwardProblem, DenseProblem
from flash_attention.choose.table import Entry, Table
from flash_attention.errors import KernelConfigError, UnsupportedError, quoted
from flash_attention.families.config import KernelConfig
from flash_attention.families.parse import parse_kernel_config
from flash_attention.families.passes import Pass
from flash_attention.families.registry import family_of
from flash_attention.files import FilePath, read_json, write_whole
from flash_attention.records import read_record, read_value

SCHEMA = 1
PASS, WANTED = "pass", "wanted"
"""Fields of a problem of another pass than the forward one: which pass it is of, and of the
backward pass the gradients by name."""


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
    entries, notes = [], []
    for number, item in enumerate(data["entries"], 1):
        try:
            entry = read_entry(item)
        except KernelConfigError as error:
            notes.append(f"entry {number} of {path} is ignored: {error}")
        except UnsupportedError as error:
            raise UnsupportedError(f"entry {number} of {path}: {error}") from None
        else:
            entries.append(entry)
    return Table(data["device"], notes=tuple(notes)).with_entries(entries)


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
    entry = read_record(data, Entry, _PARSERS)
    config, problem = entry.config, entry.problem
    of = family_of(config).pass_
    if of is not problem.pass_:
        raise UnsupportedError(
            f"{config.short_form()} is a config of the {of.value} pass, and the problem is one of"
            f" the {problem.pass_.value} pass"
        )
    if config.dtype is not problem.dtype or config.d_head < max(problem.d_head, problem.d_v):
        raise UnsupportedError(f"{config.short_form()} does not compute {problem}")
    return entry


def problem_json(problem: DenseProblem) -> dict[str, Any]:
    """Convert a problem to JSON. One of another pass than the forward one says so, and of the
    backward pass which gradients it has."""
    values = {f.name: getattr(problem, f.name) for f in fields(problem)}
    values |= {"dtype": problem.dtype.name}
    if isinstance(problem, DenseBackwardProblem):
        values[WANTED] = [name for name, asked in problem.wanted._asdict().items() if asked]
    return values if problem.pass_ is Pass.FORWARD else values | {PASS: problem.pass_.value}


def read_problem(data: object) -> DenseProblem:
    """Read a problem from JSON. Raises UnsupportedError for a wrong field."""
    if not isinstance(data, Mapping) or PASS not in data:
        return _checked(read_record(data, DenseProblem, _PARSERS))
    given = data[PASS]
    others = {p.value: kind for p, kind in DENSE.items() if p is not Pass.FORWARD}
    if not isinstance(given, str) or given not in others:
        raise UnsupportedError(
            f"{PASS} is {quoted(given)}; it is {' or '.join(map(repr, others))}, or left out for"
            " the forward pass"
        )
    kind = others[given]
    rest = {name: value for name, value in data.items() if name != PASS}
    if kind is DenseBackwardProblem:
        rest = {WANTED: None} | rest
    return _checked(read_record(rest, kind, _PARSERS))


def _checked(problem: DenseProblem) -> DenseProblem:
    for field in fields(problem):
        value = getattr(problem, field.name)
        if type(value) is int and value < 1:
            raise UnsupportedError(f"{field.name} is {value}; it is at least 1")
    if problem.heads % problem.heads_k:
        raise UnsupportedError(
            f"heads is {problem.heads}, no multiple of heads_k, which is {problem.heads_k}"
        )
    return problem


def _read_wanted(_: str, names: object) -> Wanted:
    known = Wanted._fields[:3]  # problems with sinks are not tuned
    if not isinstance(names, list) or not names or any(name not in known for name in names):
        raise UnsupportedError(
            f"{WANTED} is {quoted(names)}; a list of gradients is needed, of {', '.join(known)}"
        )
    return Wanted(*(name in names for name in Wanted._fields))


_PARSERS = {
    DenseProblem: lambda _, value: read_problem(value),
    KernelConfig: lambda name, value: parse_kernel_config(read_value(name, value, str)),
    DType: lambda name, value: DType.from_string(read_value(name, value, str)),
    Wanted: _read_wanted,
}
"""How fields that are no numbers and texts are written."""
