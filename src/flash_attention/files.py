# SPDX-License-Identifier: Apache-2.0
"""Read and write whole files, and check the fields of the JSON records in them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from flash_attention.errors import UnsupportedError, one, quoted

FilePath = str | os.PathLike[str]
MAX_BYTES = 1 << 28  # the largest file that is read
_LONG_PATH = 1024  # characters
MAX_INT = 1 << 63  # far above any number of a record, and a float holds it

MAX_MEASURED = 1e15  # far above any time, size or speed

_NUMBER = (int, float)
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "bool": (bool,),
    "float": _NUMBER,
    "str": (str,),
    "DType": (str,),
    "KernelConfig": (str,),
    "Mapping[str, float]": (dict,),
    "tuple[int, ...]": (list, tuple),
}
_INSIDE = {"Mapping[str, float]": _NUMBER, "tuple[int, ...]": (int,)}
"""The type of each value in fields that hold several values."""


@contextmanager
def writing(path: FilePath) -> Iterator[None]:
    """Turn errors of writing a file into UnsupportedError with the path."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:  # a full disk, a NUL, a loop of links
        raise UnsupportedError(
            f"cannot write {_shown(path)}: {_reason(error)}; choose another place"
        ) from error


def write_whole(path: FilePath, text: str | bytes) -> None:
    """Write a file in one step, so that a reader sees the old or the new text. Folders are made."""
    with writing(path):
        data = text if isinstance(text, bytes) else text.encode()
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        target = Path(path).resolve()
        if target.exists() and not target.is_file():  # such as /dev/stdout
            target.write_bytes(data)
            return
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            temporary.write_bytes(data)
            temporary.replace(target)
        except BaseException:  # a full disk, Ctrl-C
            with suppress(OSError):
                temporary.unlink()
            raise


def check_writable(path: FilePath) -> None:
    """Raise UnsupportedError if `write_whole` would, before there is anything to write."""
    with writing(path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        new = not os.path.lexists(path)
        Path(path).open("ab").close()
        if new:
            Path(path).unlink()


def write_record(path: FilePath, record: Mapping[str, Any]) -> None:
    """Write a JSON object with one line per field, and per object in a list of objects."""
    members = ",\n".join(f" {json.dumps(name)}: {_value(value)}" for name, value in record.items())
    write_whole(path, f"{{\n{members}\n}}\n")


def _value(value: Any) -> str:
    if isinstance(value, list | tuple) and value and all(isinstance(v, Mapping) for v in value):
        return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in value) + "\n ]"
    return json.dumps(value)


def read_text(path: FilePath, what: str) -> str:
    """Read a text file. Raises UnsupportedError, which says that the file is not `what`."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UnsupportedError(f"it has more than {MAX_BYTES} bytes")
        return data.decode()
    except (OSError, ValueError, TypeError) as error:
        raise UnsupportedError(f"{_shown(path)} is not {what}: {_reason(error)}") from error


def read_json(path: FilePath, what: str) -> Any:
    """Read a JSON file. Raises UnsupportedError, which says that the file is not `what`."""
    text = read_text(path, what)
    with naming(path, what):
        return parse_json(text)


def parse_json(text: str) -> Any:
    """Parse JSON. Numbers that are too large and strings that are not Unicode are refused."""
    try:
        value = json.loads(text, parse_int=_parse_int)
        if "\\ud" in text.lower():  # halves of surrogate pairs, which cannot be written again
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise UnsupportedError(
            f"it is no JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except UnicodeEncodeError as error:
        raise UnsupportedError("a string in it has half of a surrogate pair") from error
    except RecursionError as error:
        raise UnsupportedError("its lists and objects are nested too deeply") from error
    return value


def _parse_int(digits: str) -> int:
    if len(digits) > 20 or not -MAX_INT <= int(digits) < MAX_INT:
        raise UnsupportedError(f"its number {quoted(digits)[1:-1]} is too large")
    return int(digits)


def checked_fields(data: object, kind: Any, nested: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read the fields of a dataclass from a JSON object, and check their types. Fields with a
    default may be missing."""
    if not isinstance(data, Mapping):
        raise UnsupportedError(f"{quoted(data)} is no JSON object")
    names = [f.name for f in fields(kind)]
    if unknown := sorted(set(data) - set(names)):
        raise UnsupportedError(f"unknown field {quoted(unknown[0])}; there are {', '.join(names)}")
    for f in fields(kind):
        if f.name not in data:
            if f.default is MISSING and f.default_factory is MISSING:
                raise UnsupportedError(f"{f.name} is missing; there are {', '.join(names)}")
        elif f.name not in nested and not _is(data[f.name], str(f.type)):
            raise UnsupportedError(f"{f.name} is {quoted(data[f.name])}; {_needed(str(f.type))}")
    return dict(data)


Row = TypeVar("Row")


def checked_rows(rows: object, read: Callable[[dict[str, Any]], Row]) -> tuple[Row, ...]:
    """Read the rows of a record with `read`. There must be at least one, each a JSON object."""
    if not isinstance(rows, list):
        raise UnsupportedError("it has no list of rows")
    if not rows:
        raise UnsupportedError("it has no row: nothing was measured")
    read_rows = []
    for number, row in enumerate(rows, 1):
        try:
            if not isinstance(row, dict):
                raise UnsupportedError(f"{quoted(row)} is no JSON object")
            read_rows.append(read(row))
        except UnsupportedError as error:
            raise UnsupportedError(f"row {number}: {error}") from error
    return tuple(read_rows)


def check_positive(**values: float) -> None:
    """Raise UnsupportedError unless all values are positive."""
    for name, value in values.items():
        if not 1 / MAX_MEASURED <= value <= MAX_MEASURED:
            raise UnsupportedError(
                f"{name} is {value}; it must be positive, and no more than {MAX_MEASURED:g}"
            )


@contextmanager
def naming(path: FilePath, what: str) -> Iterator[None]:
    """Add to errors which file they concern, and that it is not `what`."""
    try:
        yield
    except UnsupportedError as error:
        raise UnsupportedError(f"{_shown(path)} is not {what}: {error}") from error


def _is(value: Any, wanted: str) -> bool:
    """Whether a value has the type of an annotation."""
    kind, _, none = wanted.partition(" | ")
    if none and value is None:
        return True
    allowed = _TYPES[kind]
    other = not isinstance(value, allowed)
    if other or (isinstance(value, bool) and bool not in allowed):
        return False
    if kind not in _INSIDE:
        return True
    several: Iterable[Any] = value.values() if kind.startswith("Mapping") else value
    return all(
        isinstance(v, _INSIDE[kind]) and not isinstance(v, bool) and isfinite(v) for v in several
    )


def _needed(wanted: str) -> str:
    kind, _, none = wanted.partition(" | ")
    words = {
        "Mapping[str, float]": "an object of numbers",
        "tuple[int, ...]": "a list of whole numbers",
    }
    return f"{words.get(kind, one(kind))}{' or null' if none else ''} is needed"


def _shown(path: object) -> str:
    named = isinstance(path, str | os.PathLike) and 0 < len(str(path)) < _LONG_PATH
    return str(path) if named else quoted(path)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "it is no text in UTF-8"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "what is above it is no folder"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)
