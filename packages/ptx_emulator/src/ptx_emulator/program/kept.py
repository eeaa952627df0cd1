# SPDX-License-Identifier: Apache-2.0
"""A program as bytes, which another process loads in a tenth of the time that PTX takes.

The bytes hold code. Whoever stores them has to make sure that nobody else can write there.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
import zlib
from functools import cache
from pathlib import Path

import numpy as np

from ptx_emulator.program.program import Program

_PACKAGE = Path(__file__).parents[1]
_FAST = 1  # a level of zlib; bytes are a fifth of what they were
_DIGEST = hashlib.sha256().digest_size


def to_bytes(program: Program, ptx: str) -> bytes:
    """The program of a PTX text."""
    packed = zlib.compress(pickle.dumps(program, pickle.HIGHEST_PROTOCOL), _FAST)
    return _key(ptx) + hashlib.sha256(packed).digest() + packed


def from_bytes(data: bytes, ptx: str) -> Program | None:
    """The program again; None for one of another text, emulator or Python, or damaged bytes."""
    key, digest, packed = data[:_DIGEST], data[_DIGEST : 2 * _DIGEST], data[2 * _DIGEST :]
    if key != _key(ptx) or digest != hashlib.sha256(packed).digest():
        return None
    program: Program = pickle.loads(zlib.decompress(packed))
    return program


def _key(ptx: str) -> bytes:
    return hashlib.sha256(_emulator() + ptx.encode()).digest()


@cache
def _emulator() -> bytes:
    """What the form of a program depends on, besides its text."""
    digest = hashlib.sha256(f"{sys.version} {np.__version__}".encode())
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()
