# SPDX-License-Identifier: Apache-2.0
"""The errors that the emulator raises."""

from __future__ import annotations

from collections.abc import Sequence


def quoted(text: str) -> str:
    """Format PTX text for a message: in one line, shortened if it is long."""
    line = " ".join(text.split())
    return f"'{line if len(line) <= 80 else line[:77] + '...'}'"


class EmulatorError(Exception):
    """The emulator cannot run the kernel it was given."""


class PtxError(EmulatorError):
    """The PTX is malformed, or the emulator does not support it. `line` is the line of the PTX."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {message}")
        self.message = message
        self.line = line


class DeadlockError(EmulatorError):
    """No warp can continue. `findings` holds what was found until then."""

    def __init__(self, message: str, findings: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.findings: list[object] = list(findings)
