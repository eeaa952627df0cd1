# SPDX-License-Identifier: Apache-2.0
"""Commands whose modules are imported when they run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from importlib import import_module
from inspect import getdoc
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from flash_attention_workbench.commands.console import json_file
from flash_attention_workbench.commands.interrupt import ending_at_once
from flash_attention_workbench.commands.signature import signature_of

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

    `place` is its module below this package and its function there. Its help and its parameters are
    read from the text of the module, which is imported when the command runs. A command that
    `computes` imports the whole library before a module that the library imports.
    """

    def __init__(self, name: str, place: str, *, computes: bool) -> None:
        self._module, self._function = f"{HERE}.{place}".split(":")
        self._computes = computes
        super().__init__(name)

    @property
    def help(self) -> str:
        return getdoc(self._signature()) or ""

    @help.setter
    def help(self, _: str | None) -> None: ...  # the framework has none to set

    def load(self) -> Any:
        """The command itself."""

        @wraps(self._signature())
        def run(**given: Any) -> None:
            self.imported()(**given)

        app = typer.Typer(add_completion=False)
        app.command(self.name, cls=_Command)(run)
        return typer.main.get_command(app)

    def _signature(self) -> Any:
        with ending_at_once():
            return signature_of(self._module, self._function)

    def imported(self) -> Any:
        """The function, from its module."""
        with ending_at_once():
            if self._computes:
                from flash_attention import attention  # noqa: F401
            return getattr(import_module(self._module), self._function)

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
