# SPDX-License-Identifier: Apache-2.0
"""From CUDA text to PTX by NVRTC, which needs no driver, no GPU and no toolkit."""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p, create_string_buffer
from ctypes.util import find_library
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

from ptx_emulator.errors import CompileError, UnsupportedError

WHEEL = "nvidia-cuda-nvrtc"
_ARCH = re.compile(r"sm_(\d{2,3})[af]?")
NOT_IN_LINE_INFORMATION = re.compile(r'["\\\x00-\x1f\x7f-\x9f\ud800-\udfff]')


class RefusedSourceError(CompileError):
    """NVRTC did not accept the source or the options; the log says why."""

    def __init__(self, log: str) -> None:
        super().__init__("NVRTC refused", log)


def check_arch(arch: str) -> None:
    """Raise UnsupportedError unless the installed NVRTC compiles for `arch`."""
    supported = _supported_arches()
    number = _ARCH.fullmatch(arch)
    if number is None or int(number.group(1)) not in supported:
        known = ", ".join(f"sm_{number}" for number in supported)
        raise UnsupportedError(
            f"cannot compile for {arch!r}; NVRTC {nvrtc_version()} compiles for {known}"
        )


def nvrtc_version() -> str:
    """The release NVRTC reports, such as "13.0"."""
    major, minor = c_int(), c_int()
    _call("nvrtcVersion", byref(major), byref(minor))
    return f"{major.value}.{minor.value}"


class Compiled(NamedTuple):
    """PTX, and what the kernel that was named is called there."""

    ptx: str
    entry: str | None = None


def compile_to_ptx(
    source: str,
    *,
    name: str,
    arguments: Sequence[str],
    headers: Mapping[str, str],
    entry: str | None = None,
) -> Compiled:
    """The PTX of `source`; `name` is its path in line information and messages.

    `headers` are texts by their names, which go before files. `entry` is a kernel that the text
    does not instantiate. RefusedSourceError has the log.
    """
    program = c_void_p()
    texts, names = _strings(headers.values()), _strings(headers)
    plain = NOT_IN_LINE_INFORMATION.sub("?", name).encode()
    _call("nvrtcCreateProgram", byref(program), source.encode(), plain, len(headers), texts, names)
    try:
        if entry is not None:
            _call("nvrtcAddNameExpression", program, entry.encode())
        compile_program = nvrtc_library().nvrtcCompileProgram
        result = compile_program(program, len(arguments), _strings(arguments))
        if result != 0:
            raise RefusedSourceError(_output(program, "ProgramLog").strip() or _said(result))
        return Compiled(_output(program, "PTX"), entry and _lowered(program, entry))
    finally:
        _call("nvrtcDestroyProgram", byref(program))
        _let_signals_interrupt()


@cache
def nvrtc_library() -> ctypes.CDLL:
    """The library of the wheel, or else that of a toolkit."""
    path = _in_wheel() or find_library("nvrtc")
    if path is None:
        raise CompileError(
            f"the CUDA compiler library NVRTC was not found; install it: pip install {WHEEL}."
            " PTX needs no compiler"
        )
    try:
        # Some releases do not look for their other half in their own folder.
        for builtins in Path(path).parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins))
        return ctypes.CDLL(path)
    except OSError as error:
        raise CompileError(f"the CUDA compiler library {path} cannot be loaded: {error}") from None


def _in_wheel() -> str | None:
    """A path, as a search by name would find another NVRTC that is loaded already."""
    try:
        files = distribution(WHEEL).files or []
    except PackageNotFoundError:
        return None
    found = (os.fspath(file.locate()) for file in files if file.name.startswith("libnvrtc.so."))
    return next(filter(os.path.isfile, found), None)


@cache
def _let_signals_interrupt() -> None:
    """NVRTC's first compile sets signals so that Ctrl-C would interrupt no wait for a thread."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(signal.getsignal(number)):
            signal.siginterrupt(number, True)


@cache
def _supported_arches() -> list[int]:
    count = c_int()
    _call("nvrtcGetNumSupportedArchs", byref(count))
    numbers = (c_int * count.value)()
    _call("nvrtcGetSupportedArchs", numbers)
    return list(numbers)


def _strings(texts: Iterable[str]) -> ctypes.Array[c_char_p]:
    encoded = [text.encode() for text in texts]
    return (c_char_p * len(encoded))(*encoded)


def _lowered(program: c_void_p, expression: str) -> str:
    """What a kernel is called in PTX."""
    found = c_char_p()
    _call("nvrtcGetLoweredName", program, expression.encode(), byref(found))
    return (found.value or b"").decode()


def _output(program: c_void_p, what: str) -> str:
    size = c_size_t()
    _call(f"nvrtcGet{what}Size", program, byref(size))
    buffer = create_string_buffer(size.value)
    _call(f"nvrtcGet{what}", program, buffer)
    return buffer.raw.decode("utf-8", "replace").rstrip("\0\n ") + "\n"


def _call(name: str, *arguments: Any) -> None:
    result = getattr(nvrtc_library(), name)(*arguments)
    if result != 0:
        raise CompileError(f"{name} failed: {_said(result)}")


def _said(result: int) -> str:
    explain = nvrtc_library().nvrtcGetErrorString
    explain.restype = c_char_p
    return str(explain(result).decode())
