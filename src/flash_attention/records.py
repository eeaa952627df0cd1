# SPDX-License-Identifier: Apache-2.0
"""Records: JSON objects that are read as dataclasses. The annotations say what a field may hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from flash_attention.errors import UnsupportedError, one, quoted

MAX_MEASURED = 1e15  # far above any time, size or speed

Kind = TypeVar("Kind")
Parsers = Mapping[Any, Callable[[str, Any], Any]]
"""How fields of some types are read: from the name and the JSON value."""


@dataclass(frozen=True)
class Limits:
    """The numbers that a field may hold, and that in words."""

    least: float
    most: float
    words: str


Positive = Annotated[
    float,
    Limits(
        1 / MAX_MEASURED, MAX_MEASURED, f"it must be positive, and no more than {MAX_MEASURED:g}"
    ),
]
Finite = Annotated[float, Limits(-MAX_MEASURED, MAX_MEASURED, "a number is needed")]
Size = Annotated[int, Limits(1, MAX_MEASURED, "it is at least 1")]
Count = Annotated[int, Limits(0, MAX_MEASURED, "it is 0 or more")]


def read_record(data: object, kind: type[Kind], parsers: Parsers | None = None) -> Kind:
    """Read a dataclass from a JSON object, and check its fields. Fields with a default may be
    missing. Raises UnsupportedError for a wrong field."""
    if not isinstance(data, Mapping):
        raise UnsupportedError(f"{quoted(data)} is no JSON object")
    hints = _hints(kind)
    known = f"there are {', '.join(hints)}"
    if unknown := sorted(set(data) - set(hints)):
        raise UnsupportedError(f"unknown field {quoted(unknown[0])}; {known}")
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in data and field.default is field.default_factory is MISSING:
            raise UnsupportedError(f"{field.name} is missing; {known}")
    return kind(**{n: read_value(n, value, hints[n], parsers) for n, value in data.items()})


def read_part(data: object, kind: type[Kind]) -> Kind:
    """Read a dataclass from a JSON object that has other fields too."""
    part = data
    if isinstance(data, Mapping):
        part = {name: value for name, value in data.items() if name in _hints(kind)}
    return read_record(part, kind)


def read_value(
    name: str, value: Any, hint: Any, parsers: Parsers | None = None, null: str = ""
) -> Any:
    """Read a field from its JSON value. Raises UnsupportedError for another type."""
    origin, inside = get_origin(hint), get_args(hint)
    if parsers and hint in parsers:
        return parsers[hint](name, value)
    if origin in (Union, UnionType):
        (kind,) = (other for other in inside if other is not NoneType)
        return None if value is None else read_value(name, value, kind, parsers, " or null")
    if origin is Annotated:
        number = read_value(name, value, inside[0], parsers, null)
        limits: Limits = inside[1]
        if not limits.least <= number <= limits.most:
            raise UnsupportedError(f"{name} is {quoted(value)}; {limits.words}")
        return number
    if is_dataclass(hint):
        return read_record(value, hint, parsers)  # type: ignore[arg-type]
    if origin is tuple and is_dataclass(inside[0]):
        return _read_rows(name, value, inside[0], parsers)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(read_value(f"{name}[{n}]", v, inside[0], parsers) for n, v in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        return {n: read_value(f"{name}.{n}", v, inside[1], parsers) for n, v in value.items()}
    if origin is Literal:
        if value not in inside:
            raise UnsupportedError(f"{name} is {quoted(value)}; there are {', '.join(inside)}")
        return value
    allowed = (int, float) if hint is float else origin or hint
    if not isinstance(value, allowed) or (isinstance(value, bool) and hint is not bool):
        words = {tuple: "a list", Mapping: "an object"}
        needed = words.get(origin) or one(hint.__name__)
        raise UnsupportedError(f"{name} is {quoted(value)}; {needed}{null} is needed")
    return value


def _read_rows(name: str, rows: object, kind: Any, parsers: Parsers | None) -> tuple[Any, ...]:
    """Read a list of records. There must be at least one."""
    if not isinstance(rows, list | tuple):
        raise UnsupportedError(f"it has no list of {name}")
    if not rows:
        raise UnsupportedError(f"it has no {name.removesuffix('s')}: nothing was measured")
    read = []
    for number, row in enumerate(rows, 1):
        try:
            read.append(read_record(row, kind, parsers))
        except UnsupportedError as error:
            raise UnsupportedError(f"{name.removesuffix('s')} {number}: {error}") from error
    return tuple(read)


def _hints(kind: Any) -> dict[str, Any]:
    """The annotations of the fields of a dataclass, in their order."""
    if kind not in _KNOWN:
        hints = get_type_hints(kind, include_extras=True)
        _KNOWN[kind] = {field.name: hints[field.name] for field in fields(kind)}
    return _KNOWN[kind]


_KNOWN: dict[Any, dict[str, Any]] = {}
