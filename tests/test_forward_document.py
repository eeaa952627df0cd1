# SPDX-License-Identifier: Apache-2.0
"""docs/forward.md: its programs run, and its tables name what there is."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

import flash_attention
from flash_attention.arch import ARCHES
from flash_attention.families.fields import choices
from flash_attention.families.given import THIRTEEN
from flash_attention.families.registry import family_called
from flash_attention.kernel_configs import DType, FlashForwardKernelConfig, parse_kernel_config
from flash_attention_workbench.tune.candidates import space_of

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "flash_attention"
TEXT = (ROOT / "docs" / "forward.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.S)


def test_its_programs_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLASH_ATTENTION_KERNELS", raising=False)
    namespace: dict[str, Any] = {}
    assert len(PROGRAMS) == 6
    for program in PROGRAMS:
        exec(compile(program, "docs/forward.md", "exec", dont_inherit=True), namespace)


def test_the_thirteen_fields_are_those_without_a_default() -> None:
    needed = list(THIRTEEN)
    assert len(needed) == 13
    table = TEXT.partition("## The thirteen fields")[2].partition("Later rungs")[0]
    assert re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?`) \|", table, re.M))) == needed
    values = choices(FlashForwardKernelConfig)
    for name in needed[1:]:
        row = next(line for line in table.splitlines() if f"`{name}`" in line)
        numbers = ", ".join(map(str, values[name]))
        assert f"| {'bool' if values[name] == (False, True) else numbers} |" in row
    later = TEXT.partition("Later rungs added")[2].partition(", all off by default")[0]
    added = [f.name for f in fields(FlashForwardKernelConfig) if f.default is not MISSING]
    assert re.findall(r"`(\w+)`", later) == added


def test_every_rule_is_in_the_table() -> None:
    families = PACKAGE / "families"
    sources = [families / "sm80" / "forward" / "config.py", families / "values.py"]
    rules = {
        rule
        for source in sources
        for rule in re.findall(r'(?:Violation\(\s+|rule=)"(\w+)"', source.read_text())
    }
    rules.remove("architecture")  # every GPU since Ampere runs them
    table = TEXT.partition("| rule |")[2].partition("```python")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == rules
    assert len(rules) == 7


def test_the_pruning_that_it_shows_is_what_is_told() -> None:
    first = parse_kernel_config("(FP16, 128, 128, 32, 4): async+load_2_2_0_tiles")
    space = space_of(first, ARCHES["sm_90"])
    assert f"\n{family_called('sm80').name} FP16 d 128: {space}\n" in TEXT
    assert first.dtype is DType.FP16


def test_the_files_and_names_of_the_last_table_exist() -> None:
    table = TEXT.partition("| there | here |")[2]
    files = re.findall(r"`([\w/]+/(?:\w+\.(?:py|cuh))?)`", table.replace("tools/debug/", ""))
    missing = [name for name in files if not (PACKAGE / name).exists()]
    assert len(files) >= 12
    assert missing == []
    headers = "".join(path.read_text() for path in (PACKAGE / "include").rglob("*.cuh"))
    for name in re.findall(r"`(?:Block|copy|layout|schedule|exponential|ptx)::(\w+)`", table):
        assert re.search(rf"\b{name}\b", headers), name
    assert hasattr(flash_attention, "forward_kernels")
