# SPDX-License-Identifier: Apache-2.0
"""House rules that no linter knows: budgets, licences, pins, words that must not be committed."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flash_attention.compile.includes import include_closure
from flash_attention.families.passes import Pass
from flash_attention.families.registry import unit_of
from flash_attention.ladder import get_ladder

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "src" / "flash_attention" / "include"
HEADER_LINES, MODULE_LINES, FUNCTION_LINES = 250, 400, 60
MOST_OPENED = 25  # headers, by the translation unit of a rung
SPDX = "SPDX-License-Identifier: Apache-2.0"
OTHERS = re.compile(
    r"pip3? install [^`&;,#|\n]*\bflash[-_.]attention\b(?!-jit)|flash[-_.]attention\\?\["
)
"""Advice to install the distribution of the import name, which others publish for other hardware.
pip takes `-`, `_` and `.` for the same."""


def sources(*patterns: str) -> list[Path]:
    folders = (ROOT / name for name in ("src", "packages", "tests", "benchmarks", "examples"))
    return sorted(path for folder in folders for p in patterns for path in folder.rglob(p))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(module: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_files_are_found() -> None:
    assert len(sources("*.cuh")) > 20
    assert Path(__file__) in sources("*.py")


@pytest.mark.parametrize(
    ("pattern", "budget"), [("*.cuh", HEADER_LINES), ("*.py", MODULE_LINES)], ids=str
)
def test_no_file_is_over_its_line_budget(pattern: str, budget: int) -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in sources(pattern)}
    assert {path: lines for path, lines in lengths.items() if lines > budget} == {}


def test_no_function_is_over_its_line_budget() -> None:
    over = {
        f"{relative(module)}:{name}": lines
        for module in sources("*.py")
        for name, lines in functions(module)
        if lines > FUNCTION_LINES
    }
    assert over == {}


@pytest.mark.parametrize("folder", ["fa/sm80/schedule", "fa/sm90/schedule"])
def test_order_of_operations_is_written_out(folder: str) -> None:
    headers = sorted((INCLUDE / folder).glob("*.cuh"))
    assert headers, f"{folder} is empty"
    branching = [path.name for path in headers if re.search(r"\bif\s+constexpr", path.read_text())]
    assert branching == []


def test_a_kernel_opens_few_headers() -> None:
    ladders = (get_ladder(), get_ladder(pass_=Pass.BACKWARD))
    opened = {
        unit.name: len(include_closure(unit.source))
        for unit in (unit_of(rung.config) for ladder in ladders for rung in ladder)
    }
    assert {name: count for name, count in opened.items() if count > MOST_OPENED} == {}


def test_what_all_families_share_names_no_instruction_of_one() -> None:
    fa = INCLUDE / "fa"
    shared = [fa / "core.cuh", fa / "dtype.cuh", *sorted((fa / "attn").rglob("*.cuh"))]
    assert len(shared) > 7
    mine = re.compile(r"fa/(?:core|dtype|ptx/math|attn/\w+)\.cuh")
    foreign = [
        f"{relative(path)}: {name}"
        for path in shared
        for name in re.findall(r"^#include <(.+)>", path.read_text(), re.M)
        if not mine.fullmatch(name)
    ]
    assert foreign == []
    named = [relative(path) for path in shared if re.search(r"\basm\b", path.read_text())]
    assert named == []


def test_every_source_states_its_licence_first() -> None:
    silent = [
        relative(path)
        for path in sources("*.py", "*.cuh")
        if SPDX not in path.read_text().partition("\n")[0]
    ]
    assert silent == []


def test_nothing_is_left_to_do() -> None:
    marks = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
    marked = [
        f"{relative(path)}:{number}"
        for path in sources("*.py", "*.cuh")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert marked == []


def test_every_requirement_is_pinned() -> None:
    pinned = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "constraints.txt").read_text(), re.M))
    lists = re.findall(
        r"^(?:dependencies|cli|plot|inspect|test|lint|requires) = \[(.*?)\]$",
        (ROOT / "pyproject.toml").read_text(),
        re.M | re.S,
    )
    declared = {name for text in lists for name in re.findall(r'"([\w-]+)', text)}
    assert {
        "setuptools",
        "torch",
        "typer",
        "matplotlib",
        "nvidia-cuda-nvdisasm",
        "pytest",
        "ruff",
    } <= declared
    assert declared - pinned == set()


def tracked() -> list[Path]:
    """The files of the repository; all files of an sdist."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others"]
    listed = subprocess.run(
        [*command, "--exclude-standard"], capture_output=True, text=True, check=False
    )
    names = listed.stdout.split("\0")[:-1]
    paths = [ROOT / name for name in names] or list(ROOT.rglob("*"))
    return sorted(path for path in paths if path.is_file() and "__pycache__" not in path.parts)


def test_nobody_is_told_to_install_what_others_publish() -> None:
    files = tracked()
    assert {ROOT / "README.md", Path(__file__), ROOT / ".ci" / "matrix"} <= set(files)
    advised = [
        f"{relative(path)}: {found.group()}"
        for path in files
        for found in OTHERS.finditer(path.read_bytes().decode(errors="replace"))
    ]
    assert advised == []


@pytest.mark.parametrize(
    ("advice", "others"),
    [
        ("pip install {}", True),
        ("pip install -U '{}[cli]'", True),
        ("{}[cli]", True),
        (r"{}\[inspect\]", True),
        ("pip install {}-jit", False),
        ("{}-jit[cli]", False),
        ("`pip install '.[all]'`, then `{} doctor`", False),
        ("pip uninstall {}", False),
    ],
)
def test_advice_is_told_apart(advice: str, others: bool) -> None:
    for name in ("flash_attention", "flash-attention"):
        assert bool(OTHERS.search(advice.format(name))) == others
