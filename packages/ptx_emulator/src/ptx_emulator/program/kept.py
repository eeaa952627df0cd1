# SPDX-License-Identifier: Apache-2.0
"""A program as bytes, which another process loads in a tenth of the time that PTX takes, and the
code of its blocks that were run.

The bytes hold code. Whoever stores them has to make sure that nobody else can write there.
"""

from __future__ import annotations

import hashlib
import marshal
import pickle
import sys
import zlib
from functools import cache
from pathlib import Path

import numpy as np

from ptx_emulator.machine.lanes import LOCAL_BASE, PARAM_BASE, SHARED_BASE
from ptx_emulator.program.program import Program

_PACKAGE = Path(__file__).parents[1]
_MAKERS = ("ptx/*.py", "emit/*.py", "program/*.py", "types.py")
_FAST = 1  # a level of zlib; bytes are a fifth of what they were
_DIGEST = hashlib.sha256().digest_size


def to_bytes(program: Program, ptx: str) -> bytes:
    """The program of a PTX text."""
    return _sealed(_key(ptx), pickle.dumps(program, pickle.HIGHEST_PROTOCOL))


def from_bytes(data: bytes, ptx: str) -> Program | None:
    """The program again; None for one of another text, emulator or Python, or damaged bytes."""
    opened = _opened(_key(ptx), data)
    program: Program | None = None if opened is None else pickle.loads(opened)
    return program


def code_to_bytes(program: Program) -> bytes:
    """The code of the blocks that were run so far."""
    return _sealed(_number(program), marshal.dumps(program.codes))


def take_code(program: Program, data: bytes) -> None:
    """Give a program its code again, unless it is of another one or damaged."""
    opened = _opened(_number(program), data)
    if opened is not None:
        program.codes |= marshal.loads(opened)
        program.codes_kept = len(program.codes)


def _number(program: Program) -> bytes:
    return hashlib.sha256(program.number).digest()


def _sealed(key: bytes, data: bytes) -> bytes:
    packed = zlib.compress(data, _FAST)
    return key + hashlib.sha256(packed).digest() + packed


def _opened(key: bytes, data: bytes) -> bytes | None:
    """What was sealed under a key; None under another one, or if it is damaged."""
    packed = data[2 * _DIGEST :]
    if data[: 2 * _DIGEST] != key + hashlib.sha256(packed).digest():
        return None
    return zlib.decompress(packed)


def _key(ptx: str) -> bytes:
    return hashlib.sha256(_emulator() + ptx.encode()).digest()


@cache
def _emulator() -> bytes:
    """What the form of a program depends on, besides its text."""
    bases = SHARED_BASE, LOCAL_BASE, PARAM_BASE
    digest = hashlib.sha256(f"{sys.version} {np.__version__} {bases}".encode())
    for path in sorted(path for place in _MAKERS for path in _PACKAGE.glob(place)):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()
