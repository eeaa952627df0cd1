# SPDX-License-Identifier: Apache-2.0
"""`ladder diff`: field, source, registers and instructions of two rungs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flash_attention.arch import DEFAULT_ARCH
from flash_attention.ladder import FAMILY, get_ladder
from flash_attention.launch.kernels import compile_config
from flash_attention_workbench.commands.ladder.diff import changed_fields, common_arch, source_diff
from flash_attention_workbench.inspect import sass
from tests.workbench.commands.invoke import invoke, refuse

pytestmark = pytest.mark.slow  # left out of `make quick`


def test_swizzle_changes_one_field_the_source_and_the_instructions() -> None:
    base, swizzle = get_ladder()[:2]
    printed = invoke("ladder", "diff", "1", "2")
    assert "swizzled: False -> True" in printed
    assert "+  using Layout = fa::sm80::layout::XorSwizzle;" in printed
    assert "+struct XorSwizzle {" in printed
    compiled = [compile_config(rung.config, DEFAULT_ARCH) for rung in (base, swizzle)]
    registers = [kernel.resources.registers for kernel in compiled]
    assert numbers_of("registers per thread", printed)[:2] == registers
    counts = [sass.opcode_counts(sass.disassemble(kernel.cubin)) for kernel in compiled]
    assert "SASS instruction" in printed
    assert numbers_of("all", printed) == [
        counts[0].total(),
        counts[1].total(),
        counts[1].total() - counts[0].total(),
    ]


def test_a_compile_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path))
    command = [sys.executable, "-m", "flash_attention", "ladder", "diff", "1", "1"]
    path = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=path, capture_output=True, text=True, check=True)
    assert "The machine code is identical" in done.stdout
    assert done.stderr == ""


def test_an_architecture_that_does_not_fit_is_refused_before_anything_is_printed() -> None:
    assert "a Hopper config needs sm_90" in refuse("ladder", "diff", "16", "17", "--arch", "sm_80")
    assert invoke("ladder", "diff", "16", "17", "--arch", "sm_80", exit_code=2) == ""


def test_a_rung_beside_itself_is_identical() -> None:
    printed = invoke("ladder", "diff", "2", "2")
    assert "The machine code is identical" in printed
    assert changed_fields(get_ladder()[1], get_ladder()[1]) == []
    assert source_diff(get_ladder()[1], get_ladder()[1]) == ""


def test_changes_add_up_over_several_rungs() -> None:
    ladder = get_ladder()
    fields = {line.partition(":")[0] for line in changed_fields(ladder[0], ladder[5])}
    assert fields == {rung.field for rung in ladder[1:6]}


def test_what_two_rungs_share_is_not_in_their_diff() -> None:
    ladder = get_ladder()
    for before, after in ((0, 1), (13, 14), (27, 28)):
        lines = source_diff(ladder[before], ladder[after]).splitlines()
        assert 0 < sum(line[:1] in "+-" for line in lines) < 60


def test_two_families_are_compared_where_both_run() -> None:
    ladder = get_ladder()
    start = next(rung for rung in ladder if rung.field == FAMILY)
    below = ladder[start.number - 2]
    assert common_arch(ladder[0], below).name == "sm_80"
    assert common_arch(below, start).name == common_arch(start, below).name == "sm_90"
    assert changed_fields(below, start) == ["family: sm_80 -> sm_90", "B_c: 32 -> 128"]


def numbers_of(label: str, text: str) -> list[int]:
    (row,) = (line for line in text.splitlines() if re.match(rf" *{label}  ", line))
    return [int(cell) if cell != "=" else 0 for cell in re.findall(r"[-+]?\d+|=", row)]


def test_two_rungs_of_the_backward_pass() -> None:
    printed = invoke("ladder", "diff", "9", "10", "--pass", "backward")
    assert "rung 9 staged store -> rung 10 cache hints on sm_80" in printed
    assert "cache_hints: False -> True" in printed
    assert "cp.async.cg.shared.global.L2::128B" in printed
