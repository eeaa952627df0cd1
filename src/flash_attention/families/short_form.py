# SPDX-License-Identifier: Apache-2.0
"""The short form of a config and the name of its kernel, both ways, from declared fields."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache, cached_property
from typing import Any

from flash_attention.call.dtype import DType
from flash_attention.errors import KernelConfigError, quoted
from flash_attention.families.fields import ANY, NEVER, declarations

NUMBER = "[0-9]{1,9}"
"""A whole number in a short form, of at most as many digits as a field can need."""
PLAIN = "plain"
"""The word of the short form if no field has one."""
_NUMBER = re.compile(NUMBER)
_PLACE = re.compile(r"\{(\w+)\}")  # of a field's value in a word


@dataclass(frozen=True)
class Word:
    """A word: the text of the field that it is of, and what it says beside its numbers."""

    text: str  # a field's name in braces is its value
    says: dict[str, Any]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """A regular expression with a group for each number, named as its field."""
        return re.compile(_PLACE.sub(rf"(?P<\1>{NUMBER})", self.text))

    @property
    def shown(self) -> str:
        """The word in a list of those that are known."""
        return _PLACE.sub("N", self.text)


@cache
def words_of(config_type: type) -> tuple[Word, ...]:
    """Return every word that configs of a type may have, in the order of the fields."""
    return tuple(
        Word(_text(name, text), {} if value is ANY else {name: value})
        for name, declared in declarations(config_type).items()
        for value, text in declared.words.items()
        if text or value is True
    )


def _text(name: str, text: str) -> str:
    """Return the text of a word of a field. A switch is its own word, if it has no other."""
    return text.replace("{}", f"{{{name}}}") or name


@cache
def tile_of(config_type: type) -> tuple[str, ...]:
    """Return the fields in the parentheses of the short form: those that no word says."""
    said = {place for word in words_of(config_type) for place in _PLACE.findall(word.text)}
    declared = declarations(config_type)
    return tuple(name for name in declared if not declared[name].words and name not in said)


def write_words(config: object) -> list[str]:
    """Return the words of a config."""
    found = []
    for name, declared in declarations(type(config)).items():
        value = getattr(config, name)
        if declared.words and value != declared.unsaid:
            text = declared.words[value if value in declared.words else ANY]
            found.append(_text(name, text).format_map(vars(config)))
    return found or [PLAIN]


def read(config_type: type, tile: Sequence[str], words: Sequence[str]) -> dict[str, Any]:
    """Parse a tile and words into fields. A field that needs a value and has no word is off."""
    declared = declarations(config_type)
    needed = (each.name for each in fields(config_type) if each.default is MISSING)
    values = {name: declared[name].off for name in needed}
    values |= _read_tile(tile, tile_of(config_type))
    for word in () if _says_nothing(config_type, words) else words:
        values |= _read_word(config_type, word)
    return values


def _says_nothing(config_type: type, words: Sequence[str]) -> bool:
    return list(words) == [PLAIN] and _may_be_plain(config_type)


def _may_be_plain(config_type: type) -> bool:
    declared = declarations(config_type).values()
    return all(one.unsaid not in (NEVER, MISSING) for one in declared if one.words)


def _read_tile(tile: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """Parse the fields in parentheses: a data type, then whole numbers."""
    dtype, *numbers = tile
    if len(tile) != len(names) or not all(map(_NUMBER.fullmatch, numbers)):
        given = quoted(", ".join(tile))[1:-1]
        raise KernelConfigError(
            f"({given}) is no tile; it is ({', '.join(names)}), whole numbers after the data type",
            rule="short_form",
        )
    return dict(zip(names, (DType.from_string(dtype), *map(int, numbers)), strict=True))


def _read_word(config_type: type, given: str) -> dict[str, Any]:
    words = words_of(config_type)
    for word in words:
        if found := word.pattern.fullmatch(given):
            return word.says | {name: int(value) for name, value in found.groupdict().items()}
    alone = _may_be_plain(config_type)
    if given == PLAIN and alone:
        raise KernelConfigError(
            f"{PLAIN!r} is for a config without other words; leave it out", rule="short_form"
        )
    known = [word.shown for word in words] + [PLAIN] * alone
    nearest = difflib.get_close_matches(given, known, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise KernelConfigError(
        f"unknown word {quoted(given)}{hint} (known: {', '.join(known)})", rule="short_form"
    )


def read_name(config_type: type, tile: str, name: str) -> tuple[dict[str, str], list[str]] | None:
    """Parse a kernel's name: the parts of `tile` in braces, words, and what features add, all
    joined by "_". Return the parts by name and the words, or None if it is no such name."""
    word = "|".join(_name_patterns(config_type))
    parts = _PLACE.sub(r"(?P<\1>[0-9]+)", tile).replace("<dtype>[0-9]", "<dtype>[a-z0-9]")
    found = re.fullmatch(rf"{parts}_(?P<words>(?:{word})(?:_(?:{word}))*)(?:_\w+)?", name)
    if found is None:
        return None
    given = found.groupdict()
    return given, re.findall(rf"({word})(?:_|$)", given.pop("words"))


def _name_patterns(config_type: type) -> Iterator[str]:
    texts = [_PLACE.sub("[0-9]+", word.text) for word in words_of(config_type)]
    yield from sorted((*texts, PLAIN), reverse=True)
