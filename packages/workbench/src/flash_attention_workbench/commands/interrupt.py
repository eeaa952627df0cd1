# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while modules are imported."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130  # exit code, as of a shell


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Ctrl-C ends the process here and now: an import of torch may swallow a KeyboardInterrupt, or
    fail with another error. Where a caller had Ctrl-C ignored or handled, that stays."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _end(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
