# SPDX-License-Identifier: Apache-2.0
"""The errors that the emulator raises."""

from __future__ import annotations

from collections.abc import Sequence


def quoted(text: str) -> str:
    """Format PTX text for a message: in one line, shortened if it is long."""
    return f"'{_short(text)}'"


def shown(value: object) -> str:
    """Format a value for a message: as Python writes it, shortened if it is long."""
    return _short(repr(value))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else f"{line[:77]}..."


class EmulatorError(Exception):
    """The emulator cannot run the kernel it was given."""


class PtxError(EmulatorError):
    """The PTX is malformed, or the emulator does not support it.

    `line` is the line of the PTX, `source` that of the CUDA text if it is known.
    """

    def __init__(self, message: str, line: int, source: str | None = None) -> None:
        place = f"PTX line {line}" if source is None else f"PTX line {line} ({source})"
        super().__init__(f"{place}: {message}")
        self.message = message
        self.line = line
        self.source = source


class RefusedKernelError(PtxError):
    """The kernel has instructions that are not emulated: `reasons` holds an error for each."""

    def __init__(self, kernel: str, reasons: Sequence[PtxError]) -> None:
        first = reasons[0]
        super().__init__(first.message, first.line, first.source)
        self.kernel = kernel
        self.reasons = tuple(reasons)

    def __str__(self) -> str:
        if len(self.reasons) == 1:
            return str(self.reasons[0])
        lines = [f"{self.kernel} has {len(self.reasons)} instructions that are not emulated:"]
        return "\n".join([*lines, *(f"  {reason}" for reason in self.reasons)])


class DeadlockError(EmulatorError):
    """No warp can continue. `findings` holds what was found until then."""

    def __init__(self, message: str, findings: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.findings: list[object] = list(findings)


class EndlessError(DeadlockError):
    """A loop went on for longer than the caller's patience."""


class UnsupportedError(EmulatorError, ValueError):
    """An argument is not valid. The message says what is allowed instead."""


class CompileError(EmulatorError):
    """NVRTC could not compile CUDA text. `log` is what it printed."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(f"{message}\n{log}".rstrip())
        self.log = log


class LaunchError(EmulatorError):
    """A launch did not come to an end: a deadlock, a trap, an assertion that failed."""
