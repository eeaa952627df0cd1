# SPDX-License-Identifier: Apache-2.0
"""How a config says itself in C++: numbers, and variants that bring their header with them."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    """`B_r = 64` becomes `static constexpr int kBR = 64;`."""

    field: str
    value: int

    @property
    def declaration(self) -> str:
        name = "".join(part[:1].upper() + part[1:] for part in self.field.split("_"))
        return f"static constexpr int k{name} = {self.value};"


@dataclass(frozen=True)
class Variant:
    """`Layout` bound to sm80/layout's XorSwizzle becomes a `using`, and names its header."""

    slot: str
    folder: str
    type: str
    argument: int | None = None

    @property
    def header(self) -> str:
        snake = re.sub(r"(?<!^)(?=[A-Z])", "_", self.type).lower()
        return f"fa/{self.folder}/{snake}.cuh"

    @property
    def declaration(self) -> str:
        namespace = self.folder.replace("/", "::")
        argument = "" if self.argument is None else f"<{self.argument}>"
        return f"using {self.slot} = fa::{namespace}::{self.type}{argument};"


Binding = Number | Variant


def render_struct(bindings: tuple[Binding, ...]) -> str:
    """The C++ struct a kernel is instantiated with."""
    return "\n".join(("struct Config {", *(f"  {b.declaration}" for b in bindings), "};"))


def headers(bindings: tuple[Binding, ...]) -> list[str]:
    """The headers of exactly the variants that are bound, without repeats, sorted."""
    return sorted({b.header for b in bindings if isinstance(b, Variant)})
