# SPDX-License-Identifier: Apache-2.0
"""Every error this package raises on purpose."""

from __future__ import annotations

from pathlib import Path

_QUOTED = 100  # characters


def quoted(value: object) -> str:
    """A value as messages show it: in one line, cut where it is long."""
    try:
        if hasattr(value, "data_ptr"):  # a tensor, whose values may have to be waited for
            return one(type(value).__name__)
        text = " ".join(repr(value).split())
    except Exception:  # Python does not print an int of thousands of digits
        return f"{one(type(value).__name__)} that cannot be printed"
    if f" object at {id(value):#x}>" in text:
        return one(type(value).__name__)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


def one(name: str) -> str:
    """A name with its article."""
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


class FlashAttentionError(Exception):
    """Base of all errors of this package."""


class KernelConfigError(FlashAttentionError, ValueError):
    """A kernel config breaks one of its family's rules."""

    def __init__(self, message: str, *, rule: str) -> None:
        super().__init__(f"{message} [rule: {rule}]")
        self.rule = rule


class UnsupportedError(FlashAttentionError, ValueError):
    """The tensors or the device do not fit; the message says what would."""


class CompileError(FlashAttentionError):
    """NVRTC refused a translation unit."""

    def __init__(self, message: str, *, source_path: Path | None = None, log: str = "") -> None:
        where = f"\nsource: {source_path}" if source_path else ""
        super().__init__(f"{message}{where}\n{log}".rstrip())
        self.source_path = source_path
        self.log = log


class LaunchError(FlashAttentionError):
    """The driver refused to load or launch a kernel."""
