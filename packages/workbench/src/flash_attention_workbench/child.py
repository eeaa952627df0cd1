# SPDX-License-Identifier: Apache-2.0
"""Child: a process that does jobs and may be killed, with its GPU state, when it does not answer.

It is a fresh interpreter, so the program that tunes needs no `if __name__ == "__main__"`, and it
has a session of its own, so Ctrl-C at the terminal reaches only the parent. It ends with its
parent, also with one that is killed while a job runs.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Literal

Note = Callable[[object], None]
"""Tells the parent how far a job is; every note starts its patience anew."""

START_S = 120.0  # patience with imports and the first use of a GPU
TIDY_S = 0.5  # for a process that is told to end: it gives back locks and removes what is half done
END_S = 5.0  # a process closes its pipe first, and has a GPU's memory to give back
_DONE, _FAILED, _NOTE = "done", "failed", "note"


class ChildLostError(Exception):
    """The child was killed for its silence, or died, or its job raised; `note` is its last one."""

    def __init__(self, fate: Literal["hung", "faulted"], reason: str, note: object) -> None:
        super().__init__(reason)
        self.fate = fate
        self.note = note


class Child:
    """Runs one job at a time in a process that is started when it is needed."""

    def __init__(self, patience: float = 30.0) -> None:
        self.patience = patience  # seconds without a word
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._changing = threading.Lock()  # either of the two; whoever closes may not be who calls

    def call(self, job: Callable[..., Any], *args: object) -> Any:
        """The result of `job(note, *args)`; ChildLostError, and no child, where there is none."""
        started = self._process is None
        process, pipe = self._started()
        note: object = None
        try:
            pipe.send((job, args))
            patience = START_S if started else self.patience
            while pipe.poll(patience):
                kind, value = pipe.recv()
                if kind == _DONE:
                    return value
                if kind == _FAILED:
                    self.kill()  # a fault leaves the GPU's context useless
                    raise ChildLostError("faulted", value, note)
                note, patience = value, self.patience
        except (EOFError, OSError):
            code = _exit_code(process)
            self.kill()
            raise ChildLostError("faulted", f"the process ended ({code})", note) from None
        except BaseException:
            self.kill()
            raise
        self.kill()
        raise ChildLostError("hung", f"no answer for {patience:.0f} s", note)

    def terminate(self) -> None:
        """Tell the process to end, and do not wait for it."""
        process = self._process
        if process is not None:
            process.terminate()

    def kill(self) -> None:
        """End the process whatever it does; a call that waits for it, in another thread, fails."""
        with self._changing:
            process, pipe = self._process, self._pipe
            self._process = self._pipe = None
        if process is None or pipe is None:
            return
        process.terminate()
        try:
            process.wait(TIDY_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        pipe.close()

    def _started(self) -> tuple[subprocess.Popen[bytes], Connection[Any, Any]]:
        with self._changing:
            if self._process is None or self._pipe is None:
                mine, its = multiprocessing.Pipe()
                self._process, self._pipe = _start(its), mine
                its.close()
            return self._process, self._pipe


def _start(pipe: Connection[Any, Any]) -> subprocess.Popen[bytes]:
    program = f"from {__name__} import serve; serve({pipe.fileno()})"
    return subprocess.Popen(
        [sys.executable, "-c", program],
        pass_fds=[pipe.fileno()],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """That of a process that closed its pipe; None if it does not end all the same."""
    try:
        return process.wait(timeout=END_S)
    except subprocess.TimeoutExpired:
        return None


class _TerminatedError(BaseException):
    """The parent told this process to end."""


def serve(descriptor: int) -> None:
    """Do the jobs that come by a pipe until the parent is gone, says so, or one fails."""

    is_told = threading.Event()

    def terminate(*_: object) -> None:
        is_told.set()
        raise _TerminatedError

    signal.signal(signal.SIGTERM, terminate)
    end_with_parent(descriptor)
    logging.getLogger("flash_attention").setLevel(logging.WARNING)
    try:
        _do_jobs(Connection(descriptor))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends already
    except BaseException:  # before Python 3.12, a RuntimeError where a class is being made
        if is_told.is_set():
            os._exit(0)  # a compile may go on in a thread of NVRTC
        raise


def end_with_parent(descriptor: int) -> None:
    """End this process, whatever it does, once the parent has no other end of a pipe."""

    def watch() -> None:
        pipe = select.poll()
        pipe.register(descriptor, 0)  # of which it hears that the other end is closed, and no more
        pipe.poll()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(TIDY_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _do_jobs(pipe: Connection[Any, Any]) -> None:
    while True:
        try:
            job, args = pipe.recv()
        except EOFError:
            return
        try:
            result = job(lambda value: pipe.send((_NOTE, value)), *args)
        except Exception as error:
            pipe.send((_FAILED, f"{type(error).__name__}: {error}"))
            return
        pipe.send((_DONE, result))
