# SPDX-License-Identifier: Apache-2.0
"""What the emulator raises."""

from __future__ import annotations

from collections.abc import Sequence


def quoted(text: str) -> str:
    """Text from a PTX module on one line, cut short, to stand in an error."""
    line = " ".join(text.split())
    return f"'{line if len(line) <= 80 else line[:77] + '...'}'"


class EmulatorError(Exception):
    """The emulator cannot run the kernel it was given."""


class PtxError(EmulatorError):
    """PTX text that is malformed, or that the emulator does not support."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {message}")
        self.message = message
        self.line = line


class DeadlockError(EmulatorError):
    """No warp can go on; `findings` holds what was reported until then."""

    def __init__(self, message: str, findings: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.findings: list[object] = list(findings)
