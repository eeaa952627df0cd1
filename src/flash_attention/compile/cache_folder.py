# SPDX-License-Identifier: Apache-2.0
"""Where compiled kernels are kept and how much room they take, as the environment says."""

from __future__ import annotations

import os
import pwd
import re
import tempfile
from pathlib import Path

from flash_attention.errors import UnsupportedError

FOLDER_VARIABLE, LIMIT_VARIABLE = "FLASH_ATTENTION_CACHE_DIR", "FLASH_ATTENTION_CACHE_LIMIT"
DEFAULT_LIMIT = 2 * 2**30  # bytes

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?) ?(|B|KiB|MiB|GiB|TiB)")
_UNITS = ("KiB", "MiB", "GiB", "TiB")


def cache_dir() -> Path:
    """The folder of compiled kernels, which need not exist yet."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return _absolute(_with_home(chosen))
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "flash_attention"
    home = _home()
    if home is None:
        return Path(tempfile.gettempdir()) / f"flash_attention-{os.geteuid()}"
    return Path(home) / ".cache" / "flash_attention"


def cache_limit() -> int:
    """How many bytes the kernels may take; those that were not used for longest go first."""
    given = os.environ.get(LIMIT_VARIABLE, "").strip()
    if not given:
        return DEFAULT_LIMIT
    size = _SIZE.fullmatch(given)
    if size is None:
        raise UnsupportedError(
            f"{LIMIT_VARIABLE}={given[:40]!r} is not a size; "
            "set it to a number of bytes, or to a number with KiB, MiB, GiB or TiB"
        )
    number, unit = size.groups()
    factor = 1024 ** (1 + _UNITS.index(unit)) if unit in _UNITS else 1
    return int(float(number) * factor)


def size_text(size: int) -> str:
    """A number of bytes for people."""
    unit = "bytes"
    value = float(size)
    for larger in _UNITS:
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}" if unit != "bytes" else f"{size} bytes"


def shown(path: Path) -> str:
    """A path as text that can be printed, whatever its bytes are."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _with_home(path: str) -> str:
    user, slash, rest = path.partition("/")
    if not user.startswith("~"):
        return path
    home = _home() if user == "~" else os.path.expanduser(user)
    if home is None or home == user:
        raise UnsupportedError(
            f"{FOLDER_VARIABLE}={path!r} starts at the home of a user who has none here; "
            "set it to an absolute path"
        )
    return home + slash + rest


def _home() -> str | None:
    """The user's home; an empty or relative HOME is none, and then the user's entry counts."""
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home):
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return None
    return home if os.path.isabs(home) else None


def _absolute(path: str) -> Path:
    try:
        return Path(path).absolute()
    except FileNotFoundError:
        raise UnsupportedError(
            f"{FOLDER_VARIABLE}={path!r} is relative to a working folder that was removed; "
            "set it to an absolute path"
        ) from None
