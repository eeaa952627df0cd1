# SPDX-License-Identifier: Apache-2.0
"""Declarations in PTX: types, kernel parameters, variables and lists of names."""

from __future__ import annotations

import re
import struct
from math import prod

from ptx_emulator.errors import PtxError, quoted
from ptx_emulator.ptx.model import Imm, Param, Variable
from ptx_emulator.ptx.operands import read_constant

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
    r"\.reg\s*(?:\.v(?P<lanes>\d+)\s+)?\.(?P<type>\w+)\s+(?P<names>.*)$", re.DOTALL
)
_DECLARATOR = re.compile(
    rf"\s*({NAME})\s*(?:<\s*(\d+)\s*>)?\s*((?:\[\s*\d*\s*\]\s*)*)"
    r"(?:=\s*(\{(?:[^{}]|\{[^{}]*\})*\}|[^,{}]+))?\s*(,|$)"
)
_ALIGN = re.compile(r"\.align\s+(\d+)")
_DIMENSION = re.compile(r"\[\s*(\d*)\s*\]")
_CLUSTER = re.compile(r"\.reqnctapercluster\s+(\d+(?:\s*,\s*\d+)*)")
_THREADS = re.compile(r"\.(maxntid|reqntid)\s+(\d+(?:\s*,\s*\d+)*)")
_CTAS = re.compile(r"\.minnctapersm\s+([1-9]\d*)")
_REGISTER_LIMIT = re.compile(r"\.maxnreg\s+(\d+)")

REGISTER_FILE = 65536  # registers of a multiprocessor
REGISTER_STEP = 8  # a thread has a multiple of it
WARP_STEP = 4  # warps that share the register file are counted in steps of it

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


def register_limit(directives: str) -> int | None:
    """The most registers of a thread at launch; None where the directives of a kernel do not say.

    CTAs that share a multiprocessor share its registers, as ptxas divides them.
    """
    limits = [
        -(-int(limit) // REGISTER_STEP) * REGISTER_STEP
        for limit in _REGISTER_LIMIT.findall(directives)
    ]
    threads, ctas = max_threads(directives), _CTAS.search(directives)
    if threads is not None and ctas is not None:
        warps = -(-threads // 32) * int(ctas[1])
        lanes = 32 * -(-warps // WARP_STEP) * WARP_STEP
        limits.append(REGISTER_FILE // lanes // REGISTER_STEP * REGISTER_STEP)
    return min(limits, default=None)


def cluster_shape(directives: str) -> tuple[int, int, int] | None:
    """The CTAs of a cluster in x, y and z, if the directives of a kernel say."""
    found = _CLUSTER.search(directives)
    if found is None:
        return None
    x, y, z = (*map(int, found[1].split(",")), 1, 1)[:3]
    return x, y, z


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


def read_variables(statement: str, line: int) -> list[Variable]:
    """The variables that a statement declares."""
    match = _VARIABLE.match(statement)
    if match is None:
        raise PtxError(f"cannot read the declaration {quoted(statement)}", line)
    space, kind = match["space"], match["type"]
    unit = type_bytes(kind, line) * int(match["lanes"] or 1)
    given = _ALIGN.search(match["attributes"])
    align = _alignment(given[1], line) if given else unit
    found: list[Variable] = []
    for name, repeat, dimensions, initial in _read_declarators(match["names"], line):
        counts = _DIMENSION.findall(dimensions)
        if repeat:
            raise PtxError(f"{name}<{repeat}>: only registers are declared in ranges", line)
        if space == "shared" and "" in counts and "extern" not in match["linkage"]:
            raise PtxError(f"{name}[] in shared memory has no size and is not .extern", line)
        data = _initial_bytes(name, initial, kind, line) if initial else b""
        if "" in counts and initial:
            counts[counts.index("")] = str(len(data) // unit)
        size = None if "" in counts else unit * prod(map(int, counts))
        if space in ("global", "const"):
            data = data.ljust(size or 0, b"\0")
        found.append(Variable(name, align, size, space, data))
    return found


def _initial_bytes(name: str, text: str, kind: str, line: int) -> bytes:
    """What a variable starts with, its rows one after the other."""
    size = type_bytes(kind, line)
    words = text.replace("{", " ").replace("}", " ").replace(",", " ").split()
    return b"".join(_constant_bytes(name, word, kind, size, line) for word in words)


def _constant_bytes(name: str, word: str, kind: str, size: int, line: int) -> bytes:
    constant = read_constant(word)
    if constant is None:
        reason = "only numbers are emulated, and no addresses, as tables of virtual functions have"
        raise PtxError(f"{name} starts with {quoted(word)}; {reason}", line)
    bits = _float_bits(constant, size) if kind[0] == "f" else constant.bits
    return (bits % (1 << 8 * size)).to_bytes(size, "little")


def _float_bits(constant: Imm, size: int) -> int:
    if constant.kind == "int" or (constant.kind, size) in (("f32", 4), ("f64", 8)):
        return constant.bits
    (value,) = struct.unpack("<d", constant.bits.to_bytes(8, "little"))
    return int.from_bytes(struct.pack("<f", value), "little")


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
    for name, repeat, dimensions, _ in _read_declarators(match["names"], line):
        if dimensions:
            raise PtxError(f"{name}{dimensions}: a register is not an array", line)
        names.extend([f"{name}{index}" for index in range(int(repeat))] if repeat else [name])
    return match["type"], lanes, names


def _read_declarators(text: str, line: int) -> list[tuple[str, str, str, str]]:
    found: list[tuple[str, str, str, str]] = []
    position = 0
    while True:
        match = _DECLARATOR.match(text, position)
        if match is None:
            raise PtxError(f"cannot read the declared name {quoted(text[position:])}", line)
        name, repeat, dimensions, initial, separator = match.groups()
        found.append((name, repeat or "", dimensions.strip(), initial or ""))
        position = match.end()
        if not separator:
            return found


def _alignment(digits: str, line: int) -> int:
    align = int(digits)
    if align < 1 or align & (align - 1):
        raise PtxError(f".align {align} is not a power of two", line)
    return align
