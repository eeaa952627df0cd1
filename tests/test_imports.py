# SPDX-License-Identifier: Apache-2.0
"""Which module may import which: layers, and what stands beside them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PACKAGE = "flash_attention"
SOURCE = Path(__file__).resolve().parent.parent / "src" / PACKAGE
ROOT = "__init__"  # the room of the package itself

LAYERS = (
    ("errors", "files", "arch", "version", "after_import"),
    ("call",),
    ("compile",),
    ("families",),
    ("ladder", "kernel_configs"),
    ("reference",),
    ("choose",),
    ("launch",),
    ("forward", "backward", "ops", "autograd", "attention", "merge", "flop_counter"),
    ("testing", "compat"),
    ("distributed",),
    (ROOT,),
)
"""Rooms, the lowest first: a module imports from its own room and from rooms of lower layers."""
WITHIN_A_LAYER = {
    ("arch", "errors"),
    ("files", "errors"),
    ("kernel_configs", "ladder"),
    ("attention", "ops"),
    ("attention", "autograd"),
    ("autograd", "ops"),
    ("merge", "ops"),
    ("ops", "flop_counter"),
}
"""Rooms that import from another one of their layer."""
BESIDE = ("emulator", "tools", "user_kernel", "__main__")
"""Rooms with a rule of their own: the emulator knows nothing of the package, a user's kernel is
compiled and emulated, tools know all of it, and nothing that computes attention knows tools."""
WHO_IMPORTS_THE_EMULATOR = {"launch/emulation.py", "launch/backward_emulation.py"}
WHO_IMPORTS_TOOLS = {"__main__.py", "__init__.py"}

LEVELS = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
CONFIG_TYPES = {"KernelConfig", "FlashForwardKernelConfig", "HopperForwardKernelConfig"}


@dataclass(frozen=True)
class Import:
    """One import of this package: where it stands, and the module that it names."""

    path: str  # of the file, below the package
    line: int
    module: str  # with the package left out; "" is the package itself
    runs: bool  # not only for type checkers

    @property
    def importer(self) -> str:
        return self.path.split("/")[0].removesuffix(".py")

    @property
    def imported(self) -> str:
        return self.module.split(".")[0] or ROOT

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {PACKAGE}.{self.module}"


def is_module(dotted: str) -> bool:
    path = SOURCE.joinpath(*dotted.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def named_modules(node: ast.AST) -> Iterator[str]:
    """The modules that a statement imports; `from a import b` names a.b where that is one."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            below = whole.removeprefix(f"{PACKAGE}.")
            yield whole if below != whole and is_module(below) else str(node.module)


def only_for_type_checkers(tree: ast.Module) -> set[ast.AST]:
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def files() -> tuple[Path, ...]:
    return tuple(sorted(SOURCE.rglob("*.py")))


@cache
def imports() -> tuple[Import, ...]:
    """Every import of this package in it, wherever it stands in a file."""
    found = []
    for file in files():
        tree = syntax(file)
        typing = only_for_type_checkers(tree)
        for node in ast.walk(tree):
            for name in named_modules(node):
                if name.split(".")[0] == PACKAGE:
                    line = getattr(node, "lineno", 0)
                    path = file.relative_to(SOURCE).as_posix()
                    below = name.removeprefix(PACKAGE).removeprefix(".")
                    found.append(Import(path, line, below, node not in typing))
    return tuple(found)


def may_import(each: Import) -> bool:
    """Whether an import follows the rule of layers."""
    importer, imported = each.importer, each.imported
    if importer == imported or importer in BESIDE or imported in BESIDE:
        return True  # rules of their own
    if LEVELS[importer] == LEVELS[imported]:
        return (importer, imported) in WITHIN_A_LAYER
    return LEVELS[importer] > LEVELS[imported]


@pytest.mark.parametrize(
    ("path", "module", "allowed"),
    [
        ("launch/plan.py", "call.call", True),
        ("launch/plan.py", "launch.device", True),
        ("call/call.py", "launch.plan", False),
        ("reference/cpu.py", "choose.tables", False),
        ("choose/tables.py", "reference.cpu", True),
        ("compile/unit.py", "families.config", False),
        ("attention.py", "ops", True),
        ("ops.py", "attention", False),
        ("forward.py", "attention", False),
        ("families/config.py", "", False),
        ("errors.py", "arch", False),
    ],
)
def test_the_rule_is_about_layers(path: str, module: str, allowed: bool) -> None:
    assert may_import(Import(path, 1, module, runs=True)) == allowed


def test_every_file_is_in_a_room() -> None:
    rooms = {file.relative_to(SOURCE).parts[0].removesuffix(".py") for file in files()}
    assert rooms == {*LEVELS, *BESIDE}
    assert len(imports()) > 500
    assert any(not each.runs for each in imports())


def test_imports_go_down() -> None:
    assert [str(each) for each in imports() if not may_import(each)] == []


def test_every_exception_is_in_use() -> None:
    used = {(each.importer, each.imported) for each in imports()}
    assert WITHIN_A_LAYER - used == set()
    assert all(LEVELS[one] == LEVELS[other] for one, other in WITHIN_A_LAYER)


def test_the_emulator_knows_nothing_of_the_package() -> None:
    outside = [str(e) for e in imports() if e.importer == "emulator" and e.imported != "emulator"]
    assert outside == []


def test_only_emulation_and_tools_import_the_emulator() -> None:
    others = {e.path for e in imports() if e.imported == "emulator"}
    rooms = ("emulator", "tools", "user_kernel")
    others = {path for path in others if path.split("/")[0] not in rooms}
    assert others == WHO_IMPORTS_THE_EMULATOR


def test_a_kernel_of_a_user_needs_a_compiler_and_the_emulator_alone() -> None:
    needed = {e.imported for e in imports() if e.importer == "user_kernel"}
    assert needed == {"compile", "emulator", "errors", "user_kernel"}
    importers = {e.importer for e in imports() if e.imported == "user_kernel"}
    assert importers == {"tools", "user_kernel"}


def test_nothing_that_computes_attention_imports_tools() -> None:
    importers = {e.path for e in imports() if e.imported == "tools" and e.importer != "tools"}
    assert importers == WHO_IMPORTS_TOOLS
    assert [str(e) for e in imports() if e.imported == "__main__"] == []


def test_the_package_names_tools_only_to_type_checkers() -> None:
    rooms = {"tools", "emulator"}
    of_package = [e for e in imports() if e.importer == ROOT]
    assert [str(e) for e in of_package if e.runs and e.imported in rooms] == []
    lazy = {e.module for e in of_package if not e.runs}
    table = next(
        ast.literal_eval(node.value)
        for node in syntax(SOURCE / "__init__.py").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_LOADED_WHEN_NAMED"
    )
    assert {module.removeprefix(f"{PACKAGE}.") for module in table.values()} == lazy


def test_modules_are_imported_by_statements() -> None:
    """But for the table of the package, which imports what it names when that is asked for."""
    called = {
        file.relative_to(SOURCE).as_posix()
        for file in files()
        for node in ast.walk(syntax(file))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__")
    }
    assert called == {"__init__.py"}


def names_in(node: ast.AST) -> set[str]:
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return found | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def asks_for_a_type(node: ast.AST) -> set[str]:
    """The types that an expression, or a pattern, tests something against."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
        return set().union(*map(names_in, node.args[1:]))
    if isinstance(node, ast.MatchClass):
        return names_in(node.cls)
    if isinstance(node, ast.Compare) and "type" in names_in(node):
        return names_in(node)
    return set()


def type_tests(tree: ast.AST) -> list[int]:
    """The lines that ask whether something is a config of some type."""
    return [
        getattr(node, "lineno", 0)
        for node in ast.walk(tree)
        if asks_for_a_type(node) & CONFIG_TYPES
    ]


def test_only_families_ask_which_family_a_config_is_of() -> None:
    asking = [
        f"{file.relative_to(SOURCE).as_posix()}:{line}"
        for file in files()
        if not file.is_relative_to(SOURCE / "families")
        for line in type_tests(syntax(file))
    ]
    assert asking == []


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(config, HopperForwardKernelConfig)",
        "isinstance(x.config, (int, configs.FlashForwardKernelConfig))",
        "isinstance(config, KernelConfig | None)",
        "issubclass(kind, KernelConfig)",
        "type(config) is HopperForwardKernelConfig",
        "type(config) in (FlashForwardKernelConfig,)",
        "match config:\n    case HopperForwardKernelConfig():\n        pass",
    ],
)
def test_a_question_for_the_family_is_recognised(source: str) -> None:
    assert len(type_tests(ast.parse(source))) == 1


def test_other_questions_are_allowed() -> None:
    allowed = "isinstance(x, int); is_config(x); HopperForwardKernelConfig(x) == KernelConfig.y"
    assert type_tests(ast.parse(allowed)) == []


def run_alone(program: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_import_is_light_and_touches_no_gpu() -> None:
    run_alone(
        "import flash_attention, sys, torch\n"
        "rooms = {name.split('.')[1] for name in sys.modules if name[:16] == 'flash_attention.'}\n"
        "assert {'attention', 'launch'} <= rooms, rooms\n"
        "assert not {'emulator', 'tools', 'compat', 'testing', 'distributed'} & rooms, rooms\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert flash_attention.__version__\n"
    )


def test_import_adds_nothing_heavy_to_what_torch_imports() -> None:
    """A package of others, or a part of torch that imports such packages."""
    heavy = {
        *("triton", "sympy", "transformers", "typer", "rich", "matplotlib", "numpy"),
        *("torch.utils.flop_counter", "torch._dynamo", "torch._inductor"),
    }
    run_alone(
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import flash_attention\n"
        "added = set(sys.modules) - before\n"
        f"heavy = added & {heavy}\n"
        "assert not heavy, heavy\n"
    )
