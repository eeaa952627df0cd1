# SPDX-License-Identifier: Apache-2.0
"""Commands whose modules are imported when they are named."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from flash_attention_workbench.commands.console import json_file
from flash_attention_workbench.commands.interrupt import ending_at_once

HERE = __name__.rpartition(".")[0]


class _Command(TyperCommand):
    """A command; one with `--json` gets a file that can be written."""

    def invoke(self, ctx: Any) -> Any:
        with json_file(ctx.params.get("json")) as file:
            if "json" in ctx.params:
                ctx.params["json"] = file
            return super().invoke(ctx)


class LazyCommand(TyperCommand):
    """Stands for a command until it is named.

    `place` is its module below this package and its function there. Its help in a list of commands
    is the docstring of the function, read from the text of the module. A command that `computes`
    imports the whole library before a module that the library imports.
    """

    def __init__(self, name: str, place: str, *, computes: bool) -> None:
        self._module, self._function = f"{HERE}.{place}".split(":")
        self._computes = computes
        super().__init__(name)

    @property
    def help(self) -> str:
        return _docstring(self._module, self._function)

    @help.setter
    def help(self, _: str | None) -> None: ...  # the framework has none to set

    def load(self) -> Any:
        """The command itself."""
        with ending_at_once():
            if self._computes:
                from flash_attention import attention  # noqa: F401
            function = getattr(import_module(self._module), self._function)
        app = typer.Typer(add_completion=False)
        app.command(self.name, cls=_Command)(function)
        return typer.main.get_command(app)

    def make_context(self, *arguments: Any, **keywords: Any) -> Any:
        return self.load().make_context(*arguments, **keywords)


class LazyGroup(TyperGroup):
    """Commands by name, each the place of its function, before those that are added otherwise."""

    places: ClassVar[Mapping[str, str]] = {}
    without_torch: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        lazy = {
            name: LazyCommand(name, place, computes=name not in self.without_torch)
            for name, place in self.places.items()
        }
        self.commands = {**lazy, **self.commands}


def _docstring(module: str, function: str) -> str:
    """The docstring of a function in a module that is not imported."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return ast.get_docstring(node) or ""
    raise AttributeError(f"{module} has no function {function}")
