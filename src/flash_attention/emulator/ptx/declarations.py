# SPDX-License-Identifier: Apache-2.0
"""Declarations in PTX: types, kernel parameters, variables and lists of names."""

from __future__ import annotations

import re
from math import prod

from flash_attention.emulator.errors import PtxError, quoted
from flash_attention.emulator.ptx.model import Param, SharedVariable

NAME = r"[%$A-Za-z_][\w$]*"

_PARAM = re.compile(
    rf"\s*\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+"
    rf"(?:\.ptr\s+(?:\.(?:const|global|local|shared)\s+)?(?:\.align\s+\d+\s+)?)?"
    rf"({NAME})\s*((?:\[\s*\d+\s*\]\s*)*)$"
)
_VARIABLE = re.compile(
    r"(?P<linkage>(?:\.(?:extern|visible|weak|common)\s+)*)"
    r"\.(?P<space>shared|global|const|local|param)(?:::\w+)?"
    r"(?P<attributes>(?:\s+\.attribute\([^)]*\)|\s+\.align\s+\d+)*)"
    r"(?:\s+\.v(?P<lanes>[248]))?\s+\.(?P<type>\w+)\s+(?P<names>.*)$",
    re.DOTALL,
)
_REGISTERS = re.compile(
    r"\.reg\s+(?:\.v(?P<lanes>\d+)\s+)?\.(?P<type>\w+)\s+(?P<names>.*)$", re.DOTALL
)
_DECLARATOR = re.compile(
    rf"\s*({NAME})\s*(?:<\s*(\d+)\s*>)?\s*((?:\[\s*\d*\s*\]\s*)*)"
    r"(?:=\s*(?:\{(?:[^{}]|\{[^{}]*\})*\}|[^,{}]+))?\s*(,|$)"
)
_ALIGN = re.compile(r"\.align\s+(\d+)")
_DIMENSION = re.compile(r"\[\s*(\d*)\s*\]")
_THREADS = re.compile(r"\.(maxntid|reqntid)\s+(\d+(?:\s*,\s*\d+)*)")

_TYPE_BYTES = {
    **{f"{kind}{8 * size}": size for kind in "bus" for size in (1, 2, 4, 8)},
    **{"f16": 2, "bf16": 2, "f16x2": 4, "bf16x2": 4, "f32": 4, "f64": 8, "b128": 16, "pred": 1},
}


def type_bytes(name: str, line: int) -> int:
    """Size of a type given without its dot."""
    if name not in _TYPE_BYTES:
        raise PtxError(f"unknown type .{name}; known: {', '.join(sorted(_TYPE_BYTES))}", line)
    return _TYPE_BYTES[name]


def max_threads(directives: str) -> int | None:
    """Threads of a CTA that the directives of a kernel ask for or allow."""
    found = {name: prod(map(int, sizes.split(","))) for name, sizes in _THREADS.findall(directives)}
    return found.get("reqntid", found.get("maxntid"))


def read_params(text: str, line: int) -> tuple[Param, ...]:
    """Kernel parameters with their places in the parameter block."""
    params: list[Param] = []
    end = 0
    for piece in text.split(",") if text.strip() else ():
        match = _PARAM.match(piece)
        if match is None:
            raise PtxError(f"cannot read the kernel parameter {quoted(piece)}", line)
        given, kind, name, dimensions = match.groups()
        unit = type_bytes(kind, line)
        align = _alignment(given, line) if given else unit
        size = unit * prod(int(count) for count in _DIMENSION.findall(dimensions))
        offset = -(-end // align) * align
        params.append(Param(name, kind, size, align, offset))
        end = offset + size
    return tuple(params)


def read_variables(statement: str, line: int) -> list[tuple[str, SharedVariable | None]]:
    """Names that a statement declares; only those in shared memory come with their size."""
    match = _VARIABLE.match(statement)
    if match is None:
        raise PtxError(f"cannot read the declaration {quoted(statement)}", line)
    unit = type_bytes(match["type"], line) * int(match["lanes"] or 1)
    given = _ALIGN.search(match["attributes"])
    align = _alignment(given[1], line) if given else unit
    found: list[tuple[str, SharedVariable | None]] = []
    for name, repeat, dimensions in _read_declarators(match["names"], line):
        counts = _DIMENSION.findall(dimensions)
        if repeat:
            raise PtxError(f"{name}<{repeat}>: only registers are declared in ranges", line)
        if match["space"] != "shared":
            found.append((name, None))
        elif "" in counts and "extern" not in match["linkage"]:
            raise PtxError(f"{name}[] in shared memory has no size and is not .extern", line)
        else:
            size = None if "" in counts else unit * prod(map(int, counts))
            found.append((name, SharedVariable(name, align, size)))
    return found


def read_registers(statement: str, line: int) -> tuple[str, int, list[str]]:
    """Type, number of lanes (1: no vector) and names of a `.reg` statement."""
    match = _REGISTERS.match(statement)
    if match is None:
        raise PtxError(f"cannot read the declaration {quoted(statement)}", line)
    type_bytes(match["type"], line)
    lanes = int(match["lanes"] or 1)
    if lanes not in (1, 2, 4):
        raise PtxError(f"a vector register has 2 or 4 lanes, not {lanes}", line)
    names: list[str] = []
    for name, repeat, dimensions in _read_declarators(match["names"], line):
        if dimensions:
            raise PtxError(f"{name}{dimensions}: a register is not an array", line)
        names.extend([f"{name}{index}" for index in range(int(repeat))] if repeat else [name])
    return match["type"], lanes, names


def _read_declarators(text: str, line: int) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    position = 0
    while True:
        match = _DECLARATOR.match(text, position)
        if match is None:
            raise PtxError(f"cannot read the declared name {quoted(text[position:])}", line)
        name, repeat, dimensions, separator = match.groups()
        found.append((name, repeat or "", dimensions.strip()))
        position = match.end()
        if not separator:
            return found


def _alignment(digits: str, line: int) -> int:
    align = int(digits)
    if align < 1 or align & (align - 1):
        raise PtxError(f".align {align} is not a power of two", line)
    return align
