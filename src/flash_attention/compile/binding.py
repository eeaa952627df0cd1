# SPDX-License-Identifier: Apache-2.0
"""How a config says itself in C++: numbers, and variants that bring their header with them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from flash_attention.compile.includes import INCLUDE_DIR
from flash_attention.errors import CompileError

_NAMESPACE = r"namespace fa::([\w:]+)"
_TYPE = r"(?:struct|class) (\w+)[^;{]*"
_NAMESPACE_OR_TYPE = re.compile(rf"^(?:{_NAMESPACE}|{_TYPE}) \{{", re.MULTILINE)


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
    """`Layout` bound to sm80/layout's XorSwizzle becomes a `using`, and names its header.

    `folder` is the namespace of the slot's variants. Their header is the one that defines them.
    """

    slot: str
    folder: str
    type: str
    argument: int | str | None = None

    @property
    def header(self) -> str:
        if header := defined_types().get(self._name):
            return header
        raise CompileError(f"no header of the package defines fa::{self._name}")

    @property
    def declaration(self) -> str:
        argument = "" if self.argument is None else f"<{self.argument}>"
        return f"using {self.slot} = fa::{self._name}{argument};"

    @property
    def _name(self) -> str:
        return f"{self.folder.replace('/', '::')}::{self.type}"


Binding = Number | Variant


def render_struct(bindings: tuple[Binding, ...]) -> str:
    """The C++ struct a kernel is instantiated with."""
    return "\n".join(("struct Config {", *(f"  {b.declaration}" for b in bindings), "};"))


@cache
def defined_types() -> dict[str, str]:
    """The types of every namespace of the headers, such as sm80::layout::XorSwizzle, and the
    header of each, as `#include` names it."""
    found = {}
    for path in sorted(INCLUDE_DIR.rglob("*.cuh")):
        namespace = ""
        for opened, name in _NAMESPACE_OR_TYPE.findall(path.read_text("utf-8")):
            namespace = opened or namespace
            if name:
                found[f"{namespace}::{name}"] = path.relative_to(INCLUDE_DIR).as_posix()
    return found


def headers(bindings: tuple[Binding, ...]) -> list[str]:
    """The headers of exactly the variants that are bound, without repeats, sorted."""
    return sorted({b.header for b in bindings if isinstance(b, Variant)})
