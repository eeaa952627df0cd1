# SPDX-License-Identifier: Apache-2.0
"""The signature of a function in a module that is not imported.

A name of such a module is found when it is asked for: of the text of the module only the statement
that binds the name is run. So is what it imports from modules of this project. The signature of a
command asks for options and constants, and never for torch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PROJECT = ("flash_attention", "flash_attention_workbench", "ptx_emulator")
READ = "read:"  # before the name of a module that is not imported


def signature_of(module: str, name: str) -> Callable[..., None]:
    """A function with the parameters and the docstring of the one in `module`, not to be called."""
    names = _names(module)
    try:
        found: Callable[..., None] = names[name]
    except KeyError:
        raise AttributeError(f"{module} has no function {name}") from None
    texts = (each for each in found.__annotations__.values() if isinstance(each, str))
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Name) and node.id in names.bindings:
            names[node.id]  # found now: Python 3.13 looks for it past `__missing__`
    return found


class _Names(dict[str, Any]):
    """The names of a module."""

    def __init__(self, module: str, path: Path) -> None:
        super().__init__(__name__=READ + module, __file__=str(path))
        body = ast.parse(path.read_text("utf-8")).body
        self.bindings = {name: statement for statement in body for name in _bound(statement)}

    def __missing__(self, name: str) -> Any:
        statement = self.bindings[name]
        match statement:
            case ast.ImportFrom(module=str(source)) if source.partition(".")[0] in PROJECT:
                alias = next(a for a in statement.names if name in (a.asname, a.name))
                self[name] = _imported(source, alias.name)
            case _:
                for other in _of_class(statement):
                    if other in self.bindings:
                        self[other]
                text = ast.Module([statement], [])
                exec(
                    compile(text, self["__file__"], "exec"), self
                )  # annotations stay text, as here
        return dict.__getitem__(self, name)


class _Read:
    """Stands for a module that is not imported, with the names that it defines. It has none that it
    imports: pickle asks everything in `sys.modules` for `torch`, and writes down the name of the
    first module that has it, which must be one that can be imported."""

    def __init__(self, names: _Names) -> None:
        object.__setattr__(self, "_names", names)

    def __getattribute__(self, name: str) -> Any:
        names = object.__getattribute__(self, "_names")
        if name == "__dict__":
            return names
        if isinstance(names.bindings.get(name), ast.Import | ast.ImportFrom):
            raise AttributeError(name)
        try:
            return names[name]
        except KeyError:
            raise AttributeError(name) from None


def _names(module: str) -> _Names:
    read = sys.modules.get(READ + module)
    if read is None:
        read = sys.modules[READ + module] = _Read(_Names(module, _path(module)))  # type: ignore
    names: _Names = vars(read)  # type: ignore
    return names


def _imported(source: str, name: str) -> Any:
    """What `from source import name` gives."""
    module = sys.modules.get(source)
    if source not in PROJECT and hasattr(module, name):
        return getattr(module, name)
    names = _names(source)
    if name in names.bindings:
        return names[name]
    return _Read(_names(f"{source}.{name}"))


def _path(module: str) -> Path:
    root, *parts = module.split(".")
    spec = find_spec(root)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0]).joinpath(*parts)
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module binds."""
    match statement:
        case ast.Import(names) | ast.ImportFrom(names=names):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in names)
        case ast.FunctionDef(name) | ast.ClassDef(name):
            yield name
        case ast.Assign() | ast.AnnAssign():
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id


def _of_class(statement: ast.stmt) -> Iterator[str]:
    """The names that the body of a class asks for, if the statement is one: Python looks for these
    in a dictionary past `__missing__`."""
    if not isinstance(statement, ast.ClassDef):
        return
    for part in statement.body:
        match part:
            case ast.FunctionDef(decorator_list=decorators, args=arguments):
                asked: list[ast.expr | None] = [*decorators, *arguments.defaults]
                asked += arguments.kw_defaults
            case ast.AnnAssign(value=value) | ast.Assign(value=value):
                asked = [value]
            case _:
                asked = []
        for expression in asked:
            for node in ast.walk(expression) if expression is not None else ():
                if isinstance(node, ast.Name):
                    yield node.id
