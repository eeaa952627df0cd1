# SPDX-License-Identifier: Apache-2.0
"""Which of many planted mistakes every run of the tests plants: the first of each kind. `make
mutations` plants all of them, and every run sees that the headers have the texts that they edit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

import pytest

from flash_attention.compile import INCLUDE_DIR
from tests.emulator.edits import Edit


class Named(Protocol):
    """A planted mistake."""

    @property
    def name(self) -> str: ...

    @property
    def caught_by(self) -> str: ...


Mistake = TypeVar("Mistake", bound=Named)


def first_of_each_kind(
    mistakes: Iterable[Mistake], name_of: Callable[[Mistake], str] = lambda m: m.name
) -> list[Any]:
    """Return the parameters of a test, all but the first of what catches them marked."""
    seen: set[str] = set()
    parameters = []
    for mistake in mistakes:
        check_texts(getattr(mistake, "edits", (getattr(mistake, "edit", None),)))
        marks = (pytest.mark.mutations,) if mistake.caught_by in seen else ()
        seen.add(mistake.caught_by)
        parameters.append(pytest.param(mistake, id=name_of(mistake), marks=marks))
    return parameters


def check_texts(edits: Iterable[object]) -> None:
    """Raise ValueError if a header has no text that one of these edits replaces."""
    texts: dict[str, str] = {}
    for edit in edits:
        if isinstance(edit, Edit):
            text = texts.get(edit.header) or (INCLUDE_DIR / "fa" / edit.header).read_text()
            texts[edit.header] = edit.apply(text)
