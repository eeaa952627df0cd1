# SPDX-License-Identifier: Apache-2.0
"""Operands of PTX instructions: registers, constants, addresses and brace lists."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from functools import lru_cache

from ptx_emulator.errors import PtxError, quoted
from ptx_emulator.ptx.model import (
    Imm,
    Memory,
    Negated,
    Operand,
    Pair,
    Reg,
    Sink,
    Special,
    Symbol,
    Vector,
)

_OPERAND = re.compile(
    r"\s*(\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\)|[^,{}\[\]()\s|]+(?:\s*\|\s*[^,{}\[\]()\s|]+)?)\s*(,|$)"
)
_ADDRESS = re.compile(
    r"\[\s*([%$\w.]+)\s*(?:([+-])\s*(-?\w+)\s*)?(?:,(?P<coords>.*))?\]$", re.DOTALL
)
_SPECIAL = re.compile(
    r"%((?:tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)(?:\.[xyzw])?"
    r"|laneid|warpid|nwarpid|smid|nsmid|gridid|clock|clock_hi|clock64"
    r"|globaltimer|globaltimer_lo|globaltimer_hi|lanemask_(?:eq|le|lt|ge|gt)|is_explicit_cluster"
    r"|cluster_ctarank|cluster_nctarank|(?:dynamic|total|aggr)_smem_size|envreg\d+|pm\d+(?:_64)?)$"
)
_INTEGER = re.compile(r"(-?)(?:0[xX]([0-9A-Fa-f]+)|0[bB]([01]+)|0([0-7]+)|(0|[1-9]\d*))U?$")
_FLOAT_BITS = re.compile(r"0(?:[fF]([0-9A-Fa-f]{8})|[dD]([0-9A-Fa-f]{16}))$")
_FLOAT = re.compile(r"-?\d+(?:\.\d*(?:[eE][+-]?\d+)?|[eE][+-]?\d+)$")


def read_operands(text: str, names: Mapping[str, Operand], line: int) -> tuple[Operand, ...]:
    """The operands of a comma-separated list; `names` holds what is declared at this place."""
    if not text or text.isspace():
        return ()
    found: list[Operand] = []
    position = 0
    while True:
        match = _OPERAND.match(text, position)
        if match is None:
            raise PtxError(f"cannot read the operands {quoted(text)}", line)
        token, separator = match.groups()
        found.append(names.get(token) or _operand(token, names, line))
        if not separator:
            return tuple(found)
        position = match.end()


@lru_cache(maxsize=4096)
def read_constant(token: str) -> Imm | None:
    """A number, or None where the token is not one."""
    if match := _INTEGER.match(token):
        sign, *digits = match.groups()
        for radix, given in zip((16, 2, 8, 10), digits, strict=True):
            if given is not None:
                return Imm(-int(given, radix) if sign else int(given, radix), "int")
    if match := _FLOAT_BITS.match(token):
        return Imm(int(match[1], 16), "f32") if match[1] else Imm(int(match[2], 16), "f64")
    if _FLOAT.match(token):
        return Imm(struct.unpack("<Q", struct.pack("<d", float(token)))[0], "f64")
    return Imm(32, "int") if token == "WARP_SZ" else None


def _operand(token: str, names: Mapping[str, Operand], line: int) -> Operand:
    first = token[0]
    if first == "[":
        return _address(token, names, line)
    if first in "{(":
        return Vector(read_operands(token[1:-1], names, line))
    if first == "!":
        return Negated(_named(token[1:], names, line))
    if "|" in token:
        left, _, right = token.partition("|")
        return Pair(_named(left.strip(), names, line), _named(right.strip(), names, line))
    return _named(token, names, line)


def _named(token: str, names: Mapping[str, Operand], line: int) -> Operand:
    known = names.get(token) or read_constant(token)
    if known is not None:
        return known
    if token == "_":
        return Sink()
    if match := _SPECIAL.match(token):
        return Special(match[1])
    raise PtxError(
        f"{quoted(token)} is neither declared, nor a number, nor a special register", line
    )


def _address(token: str, names: Mapping[str, Operand], line: int) -> Memory:
    match = _ADDRESS.match(token)
    if match is None:
        raise PtxError(f"cannot read the address {quoted(token)}", line)
    base = _named(match[1], names, line)
    if not isinstance(base, Reg | Symbol | Imm):
        raise PtxError(
            f"{quoted(match[1])} cannot be the base of the address {quoted(token)}", line
        )
    offset = read_constant(match[3]) if match[2] else Imm(0, "int")
    if offset is None or offset.kind != "int":
        raise PtxError(f"the offset of the address {quoted(token)} is no whole number", line)
    coords: list[Operand] = []
    for operand in read_operands(match["coords"] or "", names, line):
        coords.extend(operand.items if isinstance(operand, Vector) else (operand,))
    return Memory(base, -offset.bits if match[2] == "-" else offset.bits, tuple(coords))
