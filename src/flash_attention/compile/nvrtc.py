# SPDX-License-Identifier: Apache-2.0
"""One compile by NVRTC: PTX, cubin and log; needs no driver and no toolkit."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from ctypes import Array, byref, c_char_p, c_int, c_size_t, c_void_p, create_string_buffer
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from flash_attention.compile.elf import build_id
from flash_attention.compile.includes import INCLUDE_DIR
from flash_attention.compile.library import nvrtc_library
from flash_attention.errors import CompileError, UnsupportedError

_ARCH = re.compile(r"sm_(\d{2,3})[af]?")
_NO_CACHE_SINCE = (12, 9)
_NOT_IN_LINE_INFORMATION = re.compile(r'["\\\x00-\x1f\x7f-\x9f\ud800-\udfff]')

Result = TypeVar("Result")


@dataclass(frozen=True)
class Compilation:
    """What NVRTC made of one source."""

    ptx: str
    cubin: bytes
    log: str
    seconds: float


class RefusedSourceError(CompileError):
    """NVRTC did not accept the source or the options; the log says why."""

    def __init__(self, log: str) -> None:
        super().__init__("NVRTC refused", log=log)


def options(arch: str) -> tuple[str, ...]:
    """The options of every compile for `arch`.

    -no-cache, because what NVRTC takes from the driver's own cache comes without a log.
    """
    every = (f"-arch={arch}", "-std=c++20", "--ptxas-options=-v", "-lineinfo", "-no-source-include")
    return (*every, "-no-cache") if _version() >= _NO_CACHE_SINCE else every


def check_arch(arch: str) -> None:
    """Raise UnsupportedError unless the installed NVRTC makes machine code for `arch`."""
    supported = _supported_arches()
    number = _ARCH.fullmatch(arch)
    if number is None or int(number.group(1)) not in supported:
        known = ", ".join(f"sm_{number}" for number in supported)
        raise UnsupportedError(
            f"cannot compile for {arch!r}; NVRTC {nvrtc_version()} compiles for {known}"
        )


def nvrtc_version() -> str:
    """The release NVRTC reports, such as "13.0"."""
    major, minor = _version()
    return f"{major}.{minor}"


@cache
def compiler_identity() -> str:
    """Release and build of the loaded NVRTC: patch releases report the same version."""
    library = nvrtc_library().path
    return f"{nvrtc_version()} {build_id(library) or library.stat().st_size}"


@cache
def settle_signals() -> None:
    """Let NVRTC do to signals what it does in its first compile, with a source of no length.

    While that lasts, Ctrl-C ends the process on the spot: do it before anything is locked. After
    it, Ctrl-C would interrupt no wait for a lock or a thread.
    """
    _compile("", "empty.cu", {}, ())
    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(signal.getsignal(number)):
            signal.siginterrupt(number, True)


def compile_source(
    source: str,
    *,
    source_name: str,
    arguments: Sequence[str],
    headers: Mapping[str, str] | None = None,
    include_dir: Path = INCLUDE_DIR,
) -> Compilation:
    """Compile `source`; `source_name` is its path in line information and messages.

    `headers` are all that it includes, by name; NVRTC gets their texts and reads no file, so that
    nothing else can be compiled. `include_dir` is where they lie.
    """
    located = {
        name: f'#line 1 "{_plain(str(include_dir / name))}"\n{text}'
        for name, text in (headers or {}).items()
    }
    settle_signals()
    return _interruptible(lambda: _compile(source, _plain(source_name), located, arguments))


def _plain(path: str) -> str:
    """A path as line information can carry it."""
    return _NOT_IN_LINE_INFORMATION.sub("?", path)


def _interruptible(work: Callable[[], Result]) -> Result:
    """NVRTC hears no signal, so it works in a thread: who waits for a thread can be interrupted.

    A process that ends in the ordinary way waits for the thread; to end under it would crash. It
    knows nothing of a thread that has been started and does not run yet, so an interrupt cancels
    the work of that one.
    """
    outcome: Future[Result] = Future()

    def run() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    try:
        threading.Thread(target=run, name="NVRTC").start()
        return outcome.result()
    except BaseException:
        outcome.cancel()
        raise


def _compile(
    source: str, name: str, headers: Mapping[str, str], arguments: Sequence[str]
) -> Compilation:
    program = c_void_p()
    texts, names = _strings(headers.values()), _strings(headers)
    text = source.encode()
    _call("nvrtcCreateProgram", byref(program), text, name.encode(), len(headers), texts, names)
    try:
        start = time.perf_counter()
        result = _function("nvrtcCompileProgram")(program, len(arguments), _strings(arguments))
        seconds = time.perf_counter() - start
        log = _text(program, "ProgramLog")
        if result != 0:
            raise RefusedSourceError(log.strip() or _failure("nvrtcCompileProgram", result))
        return Compilation(_text(program, "PTX"), _output(program, "CUBIN"), log, seconds)
    finally:
        _call("nvrtcDestroyProgram", byref(program))


def _strings(texts: Iterable[str]) -> Array[c_char_p]:
    encoded = [text.encode() for text in texts]
    return (c_char_p * len(encoded))(*encoded)


def _text(program: c_void_p, what: str) -> str:
    return _output(program, what).decode("utf-8", "replace").rstrip("\0\n ") + "\n"


def _output(program: c_void_p, what: str) -> bytes:
    size = c_size_t()
    _call(f"nvrtcGet{what}Size", program, byref(size))
    buffer = create_string_buffer(size.value)
    _call(f"nvrtcGet{what}", program, buffer)
    return buffer.raw


@cache
def _version() -> tuple[int, int]:
    major, minor = c_int(), c_int()
    _call("nvrtcVersion", byref(major), byref(minor))
    return major.value, minor.value


@cache
def _supported_arches() -> list[int]:
    count = c_int()
    _call("nvrtcGetNumSupportedArchs", byref(count))
    numbers = (c_int * count.value)()
    _call("nvrtcGetSupportedArchs", numbers)
    return list(numbers)


def _call(name: str, *arguments: Any) -> None:
    result = _function(name)(*arguments)
    if result != 0:
        raise CompileError(_failure(name, result))


def _function(name: str) -> Callable[..., int]:
    function: Callable[..., int] = getattr(nvrtc_library().handle, name)
    return function


def _failure(name: str, result: int) -> str:
    explain = nvrtc_library().handle.nvrtcGetErrorString
    explain.restype = c_char_p
    return f"{name} failed: {explain(result).decode()}"
