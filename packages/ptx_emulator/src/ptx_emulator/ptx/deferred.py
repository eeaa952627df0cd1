# SPDX-License-Identifier: Apache-2.0
"""Objects from disk of which some attributes are made when somebody looks at them."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

_FAST = 1  # a level of zlib


class Deferred:
    """Has attributes that take most of the time to load, and that most processes never look at."""

    LATER: ClassVar[frozenset[str]] = frozenset()  # their names

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in self.LATER or "_rest" not in vars(self):
                raise AttributeError(f"{type(self).__name__} has no {name}")
            rest, number = vars(self).pop("_rest")
            vars(self).update(rest.of(number))
            return vars(self)[name]


class Rest:
    """What many objects are made of later, as bytes until one of them is asked for it."""

    def __init__(self, owners: Sequence[Deferred]) -> None:
        parts = [{name: getattr(owner, name) for name in owner.LATER} for owner in owners]
        self._packed = zlib.compress(pickle.dumps(parts, pickle.HIGHEST_PROTOCOL), _FAST)
        self._parts: list[dict[str, Any]] | None = None

    def of(self, number: int) -> dict[str, Any]:
        if self._parts is None:
            self._parts = pickle.loads(zlib.decompress(self._packed))
        return self._parts[number]

    def __getstate__(self) -> dict[str, Any]:
        return {"_packed": self._packed, "_parts": None}


def state_without_rest(owner: Deferred, rest: Rest, number: int) -> dict[str, Any]:
    """The state of the owner with a number: the rest has what is made later."""
    now = {name: value for name, value in vars(owner).items() if name not in owner.LATER}
    return now | {"_rest": (rest, number)}
