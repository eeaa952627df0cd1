# SPDX-License-Identifier: Apache-2.0
"""The README is short and its programs run; the links of every document lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from flash_attention.reference.judge import check_output
from flash_attention_workbench.bench.comparison import compare
from flash_attention_workbench.bench.results import load

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
PROGRAMS = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)


def anchors(document: Path) -> set[str]:
    """What a link to a heading of `document` may name."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", text).lower().replace(" ", "-") for text in headings}


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 130


def test_its_programs_run() -> None:
    assert len(PROGRAMS) == 2
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    for program in PROGRAMS:
        exec(compile(program, "README.md", "exec", dont_inherit=True), names)
        causal = "causal=True" in program
        assert check_output(names["o"], names["q"], names["k"], names["v"], causal=causal).ok


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings(document: Path) -> None:
    broken = []
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", document.read_text()):
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_a_link_of_the_readme_shows_the_path_that_it_leads_to() -> None:
    """So that the text says where to look where the link itself leads nowhere, as on PyPI."""
    links = re.findall(r"(?<!!)\[([^\]]+)\]\((?!https?:)([^)]+)\)", README.read_text())
    assert len(links) > 10
    assert [link for link in links if link[0] != link[1]] == []


def test_pictures_are_told_in_words_too() -> None:
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", README.read_text())
    assert [path for _, path in pictures] == ["docs/ladder.png", "docs/fa3.png"]
    assert all(len(words) > 80 for words, _ in pictures)
    measured = load(ROOT / "results" / "h200_ladder.json")
    percent = {entry.number: 100 * entry.mean_of_fa2 for entry in compare(measured).entries}
    numbers = [(int(n), int(p)) for n, p in re.findall(r"rung (\d+)\D+(\d+) %", pictures[0][0])]
    assert [number for number, _ in numbers] == [1, 16, 26]
    assert numbers == [(number, round(percent[number])) for number, _ in numbers]
