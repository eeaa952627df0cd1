# SPDX-License-Identifier: Apache-2.0
"""docs/attention.md is a guide for users: short paragraphs, and programs that run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "attention.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.S)
MOST_WORDS = 90
GUIDE = ["attention.md", "start.md", "primer.md"]


def paragraphs(text: str) -> list[str]:
    """What is neither rendered, nor code, nor a table. An item of a list is a paragraph."""
    text = re.sub(r"<!-- (\S+):begin -->.*?<!-- \1:end -->", "", text, flags=re.S)
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    found = re.split(r"\n\s*\n|\n(?=- )", text)
    return [one for one in found if not one.lstrip().startswith("|")]


@pytest.mark.parametrize("name", GUIDE)
def test_no_paragraph_is_long(name: str) -> None:
    counted = [(len(one.split()), one) for one in paragraphs((DOCS / name).read_text())]
    assert len(counted) > 15
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
