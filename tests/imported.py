# SPDX-License-Identifier: Apache-2.0
"""Which module of a package imports which, from its text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (
    ROOT / "src" / "flash_attention",
    ROOT / "packages/ptx_emulator/src/ptx_emulator",
    ROOT / "packages/workbench/src/flash_attention_workbench",
)
PACKAGE_ROOM = "__init__"  # the room of a package itself


@dataclass(frozen=True)
class Import:
    """One import of a package of this repository: where it stands, and the module it names."""

    path: str  # of the file, below its package
    line: int
    package: str  # of the module
    module: str  # with the package left out; "" is the package itself

    @property
    def importer(self) -> str:
        return self.path.split("/")[0].removesuffix(".py")

    @property
    def imported(self) -> str:
        return self.module.split(".")[0] or PACKAGE_ROOM

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.package}.{self.module}"


def is_module(dotted: str) -> bool:
    name, *below = dotted.split(".")
    source = next((source for source in SOURCES if source.name == name), None)
    if source is None:
        return False
    path = source.joinpath(*below)
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def named_modules(node: ast.AST) -> Iterator[str]:
    """The modules that a statement imports; `from a import b` names a.b where that is one."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield whole if is_module(whole) else str(node.module)


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def files(source: Path) -> tuple[Path, ...]:
    return tuple(sorted(source.rglob("*.py")))


@cache
def imports(source: Path) -> tuple[Import, ...]:
    """Every import of this repository's packages in one of them, wherever it stands in a file."""
    packages = [each.name for each in SOURCES]
    found = []
    for file in files(source):
        for node in ast.walk(syntax(file)):
            for name in named_modules(node):
                package, _, below = name.partition(".")
                if package in packages:
                    line = getattr(node, "lineno", 0)
                    path = file.relative_to(source).as_posix()
                    found.append(Import(path, line, package, below))
    return tuple(found)
