# SPDX-License-Identifier: Apache-2.0
"""Errors about a user's function: they name its file, its line and the text of the line."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from flash_attention.errors import UnsupportedError

_NOT_THE_USERS = (str(Path(__file__).parent), str(Path(torch.__file__).parent), "<frozen")


def refuse(met: str, instead: str) -> NoReturn:
    """Raise UnsupportedError for what the running function of the user's does."""
    if torch.compiler.is_dynamo_compiling():  # which names the line itself, and has no frames
        raise UnsupportedError(f"{met}; {instead}")
    raise UnsupportedError(f"{_running_line()}{met}; {instead}")


def refuse_function(function: Callable[..., Any], met: str, instead: str) -> NoReturn:
    """Raise UnsupportedError for a function as a whole."""
    raise UnsupportedError(f"{_first_line(function)}{met}; {instead}")


def _running_line() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    return _place(frame.f_code.co_filename, frame.f_lineno)


def _first_line(function: Callable[..., Any]) -> str:
    inner: Any = getattr(function, "func", function)  # of a functools.partial
    called = getattr(inner, "__call__", None)  # noqa: B004  # of an object, what it does
    code = getattr(inner, "__code__", None) or getattr(called, "__code__", None)
    return "" if code is None else _place(code.co_filename, code.co_firstlineno)


def _place(file: str, line: int) -> str:
    text = linecache.getline(file, line).strip()
    return f"{file}:{line}: {text}\n" if text else f"{file}:{line}: "
