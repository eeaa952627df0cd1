# SPDX-License-Identifier: Apache-2.0
"""Fields of a config. Each is declared once: what it chooses, its values, its word in the short
form, its C++ binding, and the fields that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_type_hints

from typing_extensions import dataclass_transform

from flash_attention.call.dtype import DType
from flash_attention.compile.binding import Binding, Number, Variant

Values = tuple[Any, ...] | range
Bind = Callable[[Any, str], Binding | None]
"""From a config and the name of a field to what the field binds, if anything."""
Config = TypeVar("Config")

KEY = "declared"  # of the metadata of a field
ANY = object()  # stands for every value that has no word of its own
NEVER = object()  # the value without a word of a field whose values all have one


@dataclass(frozen=True)
class Needs:
    """Another field that has to have a value, unless the field is off."""

    field: str
    why: str  # what the error says after the field and its value
    value: Any = True
    rule: str = ""  # by default "<field>_needs_<other field>"
    absent: bool = False  # a kernel that does not meet the need lacks what the field binds, too

    def is_met(self, config: Any) -> bool:
        """Whether the other field of a config has the value."""
        return bool(getattr(config, self.field) == self.value)


@dataclass(frozen=True)
class Declaration:
    """What a config declares of a field. The helpers below make one."""

    what: str = ""  # the row of the field in the documents
    values: Values | None = None  # None means every integer
    words: Mapping[Any, str] = field(default_factory=dict)  # a field's name in braces is its value
    unsaid: Any = NEVER  # the value that the short form leaves out
    bind: Bind | None = None
    needs: tuple[Needs, ...] = ()
    off: Any = None  # the value with which a field needs nothing


def element_type(what: str) -> Any:
    """Declare the element type."""
    return field(metadata={KEY: Declaration(what, tuple(DType))})


def number(
    what: str,
    values: Values | None = None,
    *,
    default: Any = MISSING,
    word: str = "",
    always: bool = False,
    bind: Bind | str | None = "",
    needs: Needs | tuple[Needs, ...] = (),
) -> Any:
    """Declare a number.

    - `word`: its word, as "lazy_{}". A number without one is in the parentheses of the short form,
      unless the word of another field has its name.
    - `always`: whether its default has a word, too.
    - `bind`: how it is bound. A string is the name in C++, by default that of the field.
    """
    off = values[0] if default is MISSING and values else default
    declaration = Declaration(
        what,
        values,
        {ANY: word} if word else {},
        NEVER if always else default,
        as_number(bind) if isinstance(bind, str) else bind,
        _all(needs),
        off,
    )
    return field(default=default, metadata={KEY: declaration})


def switch(
    what: str,
    *,
    default: Any = MISSING,
    word: str = "",
    bind: Bind | None = None,
    needs: Needs | tuple[Needs, ...] = (),
) -> Any:
    """Declare a switch, whose word is by default its name."""
    declaration = Declaration(
        what, (False, True), {True: word}, False, bind, _all(needs), off=False
    )
    return field(default=default, metadata={KEY: declaration})


def choice(
    what: str,
    words: Mapping[Any, str],
    *,
    default: Any = MISSING,
    bind: Bind | None = None,
    needs: Needs | tuple[Needs, ...] = (),
) -> Any:
    """Declare a member of an enum. `words` has the word of every member, or "" for none."""
    members = tuple(words)
    unsaid = next((member for member, word in words.items() if not word), NEVER)
    off = members[0] if default is MISSING else default
    declaration = Declaration(what, members, words, unsaid, bind, _all(needs), off)
    return field(default=default, metadata={KEY: declaration})


def _all(needs: Needs | tuple[Needs, ...]) -> tuple[Needs, ...]:
    return (needs,) if isinstance(needs, Needs) else needs


def as_number(name: str = "", factor: int = 1) -> Bind:
    """Bind a number, or a switch as 0 or 1, by default under the name of the field."""
    return lambda config, field: Number(name or field, int(getattr(config, field)) * factor)


def variant(slot: str, folder: str, off: str, on: str) -> Callable[[Any, str], Variant]:
    """Bind one of two types of a slot. A number that is not 0 is the argument of the second."""

    def bind(config: Any, field: str) -> Variant:
        value = getattr(config, field)
        if not value:
            return Variant(slot, folder, off)
        return Variant(slot, folder, on, None if value is True else value)

    return bind


@dataclass_transform(
    frozen_default=True,
    order_default=True,
    field_specifiers=(element_type, number, switch, choice, field),
)
def kernel_config(cls: type[Config]) -> type[Config]:
    """Make a class of configs: a frozen, ordered dataclass of declared fields."""
    return dataclass(frozen=True, order=True)(cls)


def declarations(config_type: type) -> dict[str, Declaration]:
    """Return the declaration of every field. A field without one has the values of its type."""
    return _declarations(config_type)


@cache
def _declarations(config_type: type) -> dict[str, Declaration]:
    types = get_type_hints(config_type)
    return {
        each.name: each.metadata.get(KEY) or _of_type(types[each.name])
        for each in fields(config_type)
    }


def _of_type(annotation: type) -> Declaration:
    if issubclass(annotation, Enum):
        return Declaration(values=tuple(annotation))
    return Declaration(values=(False, True) if annotation is bool else None)


def choices(config_type: type) -> dict[str, Values]:
    """Return the values of every field that has a limited number of them."""
    declared = declarations(config_type).items()
    return {name: one.values for name, one in declared if one.values is not None}


def literal(value: object) -> str:
    """Return a value as a program has it."""
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)


def bindings_of(config: object) -> Iterator[Binding]:
    """Yield what the fields of a config bind, in their order."""
    for name, declared in declarations(type(config)).items():
        absent = any(need.absent and not need.is_met(config) for need in declared.needs)
        bound = declared.bind and not absent and declared.bind(config, name)
        if bound:
            yield bound
