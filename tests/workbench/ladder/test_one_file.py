# SPDX-License-Identifier: Apache-2.0
"""One file of a rung: short, in order, hermetic, and the very same machine code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

from flash_attention.call.features import CAUSAL, PLAIN, Features
from flash_attention.compile import compile_kernel
from flash_attention.compile.binding import defined_types
from flash_attention.compile.elf import text_section
from flash_attention.compile.includes import INCLUDE_DIR, include_closure
from flash_attention.families.passes import Pass
from flash_attention.families.registry import unit_of
from flash_attention.kernel_configs import DType
from flash_attention.ladder import Rung, get_ladder
from flash_attention.launch.kernels import compile_config
from flash_attention_workbench.commands.ladder.show import title_of
from flash_attention_workbench.ladder.one_file import one_file

pytestmark = pytest.mark.slow  # left out of `make quick`

LADDER, BACKWARD = get_ladder(), get_ladder(pass_=Pass.BACKWARD)
LAST = len(LADDER)
NUMBERS = range(1, LAST + 1)
LINES, LINES_OF_THE_FIRST, COLUMNS = 980, 400, 120
BACKWARD_LINES, LINES_OF_THE_FIRST_BACKWARD = 1200, 540
SECTIONS = [
    "numbers and arguments",
    "instructions",
    "softmax",
    "tiles",
    "the schedule",
    "the kernel",
]


@cache
def file_of(number: int) -> str:
    rung = LADDER[number - 1]
    return one_file(unit_of(rung.config).source, title_of(rung, LADDER))


@pytest.mark.parametrize("number", NUMBERS)
def test_it_is_short_enough_to_read(number: int) -> None:
    lines = file_of(number).splitlines()
    assert len(lines) <= (LINES_OF_THE_FIRST if number == 1 else LINES)
    assert max(len(line) for line in lines) <= COLUMNS
    assert [line for line in lines if line != line.rstrip()] == []


def check_machine_code(rung: Rung, features: Features, folder: Path) -> None:
    config, arch = rung.config, rung.config.default_arch
    text = one_file(unit_of(config, features).source)
    alone = compile_kernel(
        text, arch=config.target(arch), name=f"one_file_{rung.number}", include_dir=folder
    )
    together = compile_config(config, arch, features)
    assert text_section(alone.cubin) == text_section(together.cubin)


@pytest.mark.parametrize("rung", BACKWARD, ids=lambda rung: str(rung.number))
def test_a_backward_kernel_is_short_enough_to_read(rung: Rung) -> None:
    lines = one_file(unit_of(rung.config).source, title_of(rung, BACKWARD)).splitlines()
    assert len(lines) <= (LINES_OF_THE_FIRST_BACKWARD if rung.number == 1 else BACKWARD_LINES)
    assert max(len(line) for line in lines) <= COLUMNS
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("rung", BACKWARD[:-1], ids=lambda rung: str(rung.number))
def test_a_backward_kernel_compiles_alone_to_the_same_machine_code(
    rung: Rung, tmp_path: Path
) -> None:
    check_machine_code(rung, CAUSAL if rung.causal else PLAIN, tmp_path)


@pytest.mark.parametrize("place", [0, 9, -2])
def test_a_backward_kernel_of_another_type_and_head_dimension_does_too(
    place: int, tmp_path: Path
) -> None:
    ladder = get_ladder(DType.BF16, 64, pass_=Pass.BACKWARD)
    check_machine_code(ladder[place], CAUSAL, tmp_path)


@pytest.mark.parametrize("number", [1, 8, 16, 17, 18, 21, LAST])
def test_it_compiles_alone_to_the_machine_code_of_the_rung(number: int, tmp_path: Path) -> None:
    check_machine_code(LADDER[number - 1], PLAIN, tmp_path)


@pytest.mark.parametrize("number", [1, LAST])
def test_another_type_and_head_dimension_do_too(number: int, tmp_path: Path) -> None:
    check_machine_code(get_ladder(DType.BF16, 64, 8)[number - 1], PLAIN, tmp_path)


@pytest.mark.parametrize("number", [16, LAST])
def test_a_causal_kernel_does_too(number: int, tmp_path: Path) -> None:
    check_machine_code(LADDER[number - 1], CAUSAL, tmp_path)


@pytest.mark.parametrize("number", [1, 16, 17, LAST])
def test_it_holds_nothing_of_headers_that_the_rung_does_not_use(number: int) -> None:
    text = words(file_of(number))
    used = include_closure(unit_of(LADDER[number - 1].config).source)
    for path in sorted(INCLUDE_DIR.rglob("*.cuh")):
        if path.relative_to(INCLUDE_DIR).as_posix() not in used:
            idea = words(path.read_text().partition("#pragma once")[0].partition("\n")[2])
            assert idea not in text, path
    bound = set(re.findall(r"using \w+ = fa::([\w:]+)", unit_of(LADDER[number - 1].config).source))
    slots = {name.rpartition("::")[0] for name in bound}
    for name in defined_types():
        space, _, variant = name.rpartition("::")
        if space in slots and name not in bound | {CALLED_BY_STALE_MAX}:
            assert not re.search(rf"struct {variant}\b", text), name
    for word in ("#include", "#pragma", "static_assert", "concept ", "requires"):
        assert word not in text


CALLED_BY_STALE_MAX = "attn::rescale::Lazy"


def words(text: str) -> str:
    """The text without line breaks and comment marks."""
    return " ".join(text.replace("//", " ").split())


@pytest.mark.parametrize(
    ("number", "header", "start"),
    [
        (1, "sm80/schedule/lazy", "// Every block"),
        (3, "sm80/schedule/eager", "// V is loaded"),
        (17, "sm90/roles/unified", "// All warpgroups"),
        (21, "sm90/verbs", "// One key block"),
        (LAST, "sm90/schedule/overlapped", "// Q K^T"),
    ],
)
def test_the_comments_of_the_schedule_are_in_it(number: int, header: str, start: str) -> None:
    text = (INCLUDE_DIR / f"fa/{header}.cuh").read_text()
    source = text[text.index(start) :]
    idea = "".join(takewhile(lambda line: line.startswith("//"), source.splitlines(keepends=True)))
    # A call of a verb that this rung's variant leaves empty goes, and its comment with it.
    comments = re.findall(
        r"^(?!.*(?:queries_read|try_stale_max|clear_tail)).*;  // (.+)", source, re.MULTILINE
    )
    assert comments
    text = words(file_of(number))
    for comment in (idea, *comments):
        assert words(comment) in text


@pytest.mark.parametrize("number", [1, 10, 16, 17, 18, LAST])
def test_it_reads_from_top_to_bottom(number: int) -> None:
    text = file_of(number)
    assert text.startswith("// SPDX-License-Identifier: Apache-2.0\n// Rung ")
    assert text.count("SPDX") == 1
    headings = re.findall(r"^// ---- (.+?) -+$", text, re.MULTILINE)
    assert headings == [title for title in SECTIONS if title in headings]
    assert {"instructions", "softmax", "the kernel"} <= set(headings)
    assert text.index("struct Config {") < text.index(f"// ---- {headings[0]}")
    assert text.index('extern "C"') > text.index("// ---- the kernel")


def test_every_run_prints_the_same() -> None:
    program = (
        "from tests.workbench.ladder.test_one_file import file_of as f; print(f(1), f(17), end='')"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == f"{file_of(1)} {file_of(17)}"
