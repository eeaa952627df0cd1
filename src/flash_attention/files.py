# SPDX-License-Identifier: Apache-2.0
"""Read and write whole files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flash_attention.errors import UnsupportedError, quoted

FilePath = str | os.PathLike[str]
MAX_BYTES = 1 << 28  # the largest file that is read
_LONG_PATH = 1024  # characters
MAX_INT = 1 << 63  # far above any number of a record, and a float holds it


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


@contextmanager
def naming(path: FilePath, what: str) -> Iterator[None]:
    """Add to errors which file they concern, and that it is not `what`."""
    try:
        yield
    except UnsupportedError as error:
        raise UnsupportedError(f"{_shown(path)} is not {what}: {error}") from error


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
