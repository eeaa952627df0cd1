# SPDX-License-Identifier: Apache-2.0
"""docs/attention.md: its programs run, and its commands print what it shows. The paragraphs of all
pages are short."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.console import check_commands

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TEXT = (DOCS / "attention.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.S)
MOST_WORDS = 90
PAGES = ["README.md", *(f"docs/{page.name}" for page in sorted(DOCS.glob("*.md")))]


def paragraphs(text: str) -> list[str]:
    """What is neither code, nor a table, nor a mark. An item of a list is a paragraph."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    text = re.sub(r"^(\||<!-- ).*$", "", text, flags=re.M)
    return re.split(r"\n\s*\n|\n(?=- |\d+\. )", text)


@pytest.mark.parametrize("name", PAGES)
def test_no_paragraph_is_long(name: str) -> None:
    counted = [(len(one.split()), one) for one in paragraphs((ROOT / name).read_text())]
    assert len(counted) > 9
    assert [one for words, one in counted if words > MOST_WORDS] == []


def test_its_programs_run() -> None:
    """On the CPU, but for the one that shows models that are not here."""
    models = [program for program in PROGRAMS if "AutoModelForCausalLM" in program]
    assert len(models) == 1
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    for program in PROGRAMS:
        if program not in models:
            smaller = program.replace('device="cuda"', 'device="cpu"').replace("2048", "256")
            exec(compile(smaller, "docs/attention.md", "exec", dont_inherit=True), names)
    assert names["report"].ok
    o, lse = names["attention"](names["q"], names["k"], names["v"], return_lse=True)
    torch.testing.assert_close(names["o"], o, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(names["lse"], lse, atol=1e-2, rtol=1e-2)


@pytest.mark.slow
def test_its_commands_print_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert check_commands(TEXT) == 2
