# SPDX-License-Identifier: Apache-2.0
"""What the linter of imports, whose contracts are in pyproject.toml, cannot know: modules that are
imported by name, types that only families may ask for, and what an import brings along."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from tests.imported import SOURCES, files, syntax

SOURCE = SOURCES[0]

CONFIG_TYPES = {"KernelConfig", "FlashForwardKernelConfig", "HopperForwardKernelConfig"}


def test_modules_are_imported_by_statements() -> None:
    """But for the table of the package, which imports what it names when that is asked for."""
    called = {
        file.relative_to(SOURCE).as_posix()
        for file in files(SOURCE)
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
        for file in files(SOURCE)
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


def test_without_the_workbench_its_functions_say_what_to_install() -> None:
    run_alone(
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'flash_attention_workbench':\n"
        "            raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import flash_attention\n"
        "try:\n"
        "    flash_attention.check\n"
        "except ModuleNotFoundError as error:\n"
        "    said = str(error)\n"
        "assert said == 'check is in the package flash_attention_workbench, which is not installed;"
        " pip install flash-attention-jit brings it', said\n"
    )


def test_import_is_light_and_touches_no_gpu() -> None:
    run_alone(
        "import flash_attention, sys, torch\n"
        "rooms = {name.split('.')[1] for name in sys.modules if name[:16] == 'flash_attention.'}\n"
        "assert {'attention', 'launch'} <= rooms, rooms\n"
        "assert not {'compat', 'testing', 'distributed'} & rooms, rooms\n"
        "assert not {'ptx_emulator', 'flash_attention_workbench'} & sys.modules.keys()\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert flash_attention.__version__\n"
    )


def test_import_adds_nothing_heavy_to_what_torch_imports() -> None:
    """A package of others, or a part of torch that imports such packages."""
    heavy = {
        *("triton", "sympy", "typer", "rich", "matplotlib", "numpy"),
        *("transformers", "kernels", "diffusers", "vllm", "sglang", "transformer_engine"),
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
