# SPDX-License-Identifier: Apache-2.0
"""The errors that this package raises."""

from __future__ import annotations

from pathlib import Path

_QUOTED = 100  # characters


def quoted(value: object) -> str:
    """Format a value for a message: in one line, shortened if it is long."""
    try:
        if hasattr(value, "data_ptr"):  # a tensor: printing its values might wait for a device
            return one(type(value).__name__)
        text = " ".join(repr(value).split())
    except Exception:  # Python does not print an int of thousands of digits
        return f"{one(type(value).__name__)} that cannot be printed"
    if f" object at {id(value):#x}>" in text:
        return one(type(value).__name__)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


def one(name: str) -> str:
    """Put the indefinite article before a name."""
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


class FlashAttentionError(Exception):
    """The base class of all errors of this package."""


class KernelConfigError(FlashAttentionError, ValueError):
    """A kernel config is not valid. `rule` names the rule that it breaks."""

    def __init__(self, message: str, *, rule: str) -> None:
        super().__init__(f"{message} [rule: {rule}]")
        self.rule = rule


class UnsupportedError(FlashAttentionError, ValueError):
    """An argument or a device is not supported. The message says what is allowed instead."""


class CompileError(FlashAttentionError):
    """NVRTC could not compile a kernel. `source_path` is its source, `log` what NVRTC printed."""

    def __init__(self, message: str, *, source_path: Path | None = None, log: str = "") -> None:
        where = f"\nsource: {source_path}" if source_path else ""
        super().__init__(f"{message}{where}\n{log}".rstrip())
        self.source_path = source_path
        self.log = log


class LaunchError(FlashAttentionError):
    """A kernel could not be loaded or launched, or the emulator found an error in it."""
