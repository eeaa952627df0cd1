# SPDX-License-Identifier: Apache-2.0
"""Parse the parts of a short form into the fields of a config."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

from flash_attention.call.dtype import DType
from flash_attention.errors import KernelConfigError, quoted

NUMBER = r"\d{1,9}"
"""A whole number in a short form, of at most as many digits as a field can need."""
_NUMBER = re.compile(NUMBER)

Config = TypeVar("Config")


def read_tile(tile: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """Parse the fields in parentheses: a data type, then whole numbers."""
    dtype, *numbers = tile
    if len(tile) != len(names) or not all(map(_NUMBER.fullmatch, numbers)):
        given = quoted(", ".join(tile))[1:-1]
        raise KernelConfigError(
            f"({given}) is no tile; it is ({', '.join(names)}), whole numbers after the data type",
            rule="short_form",
        )
    return dict(zip(names, (DType.from_string(dtype), *map(int, numbers)), strict=True))


def read_words(words: Iterable[str], read: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Parse words into fields. `read` parses one word."""
    return {field: value for word in words for field, value in read(word).items()}


def read_name(
    name: str, tile: str, word: str, parse: Callable[[Sequence[str], Sequence[str]], Config]
) -> Config | None:
    """The config of a kernel's name: a tile, words, and what features add, all joined by "_".

    `tile` and `word` are patterns, the groups of `tile` what `parse` takes for one. None if the
    name is none of theirs.
    """
    found = re.fullmatch(rf"{tile}_((?:{word})(?:_(?:{word}))*)(?:_\w+)?", name)
    if found is None:
        return None
    *fields, words = found.groups()
    return parse(fields, re.findall(rf"({word})(?:_|$)", words))


def refuse_word(word: str, known: list[str]) -> NoReturn:
    """Raise KernelConfigError, and suggest the nearest known word."""
    nearest = difflib.get_close_matches(word, known, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise KernelConfigError(
        f"unknown word {quoted(word)}{hint} (known: {', '.join(known)})", rule="short_form"
    )
