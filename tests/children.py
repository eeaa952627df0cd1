# SPDX-License-Identifier: Apache-2.0
"""Processes that have torch when they start: a server has imported it once, and forks them."""

from __future__ import annotations

import os
import runpy
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

_SERVER = get_context("forkserver")
_SERVER.set_forkserver_preload(["torch", "torch.distributed"])


class Child:
    """A process that calls a function, and stores what it says in a file."""

    def __init__(
        self,
        said: Path,
        function: Callable[..., object],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._said = said
        given = {**os.environ, **(environment or {})}
        self._process: ForkServerProcess = _SERVER.Process(
            target=_call, args=(str(said), given, function, arguments)
        )
        self._process.start()

    @property
    def code(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._process.exitcode

    @property
    def said(self) -> str:
        return self._said.read_text() if self._said.exists() else ""

    def wait(self, seconds: float) -> None:
        self._process.join(max(seconds, 0))

    def end(self) -> None:
        """Kill it, and those that it has forked, if it still runs."""
        if self.code is None:
            assert self._process.pid is not None
            with suppress(ProcessLookupError):  # it may have no group of its own yet
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.join()


def wait_for(children: Sequence[Child], seconds: float) -> None:
    """Wait until all have ended. Those that take longer are killed, which raises TimeoutError."""
    deadline = time.monotonic() + seconds
    try:
        for child in children:
            child.wait(deadline - time.monotonic())
        if any(child.code is None for child in children):
            said = "\n".join(child.said for child in children)
            raise TimeoutError(f"processes run after {seconds} s:\n{said}")
    finally:
        for child in children:
            child.end()


def script(path: str) -> None:
    """Run a file as `python PATH` does. A child's function."""
    runpy.run_path(path, run_name="__main__")


def _call(
    said: str, environment: dict[str, str], function: Callable[..., object], arguments: Any
) -> None:
    os.setsid()
    with open(said, "wb", buffering=0) as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    function(*arguments)
