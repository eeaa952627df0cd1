# SPDX-License-Identifier: Apache-2.0
"""A name out of a list, and what to say when it is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from flash_attention.errors import UnsupportedError, quoted


def checked_choice(what: str, name: str, known: Iterable[str]) -> str:
    """`name`, if it is one of `known`; else an error with all of them and the nearest."""
    names = list(known)
    if name in names:
        return name
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise UnsupportedError(f"unknown {what} {quoted(name)}{hint} (there are {', '.join(names)})")
