# SPDX-License-Identifier: Apache-2.0
"""One row of the tables of flash-attn's semantics."""

from __future__ import annotations

from dataclasses import dataclass

EQUAL = "equal"


@dataclass(frozen=True)
class Row:
    """What one parameter means; `names` are as in the signatures, or words for a result."""

    names: str
    documented: str
    here: str
    tests: tuple[str, ...]

    def cells(self) -> tuple[str, str, str, str]:
        names = ", ".join(f"`{name}`" if name.isidentifier() else name for name in self.parameters)
        tests = ", ".join(f"`{name.removeprefix('test_')}`" for name in self.tests)
        return names, self.documented, self.here, tests

    @property
    def parameters(self) -> list[str]:
        return self.names.split(", ")
