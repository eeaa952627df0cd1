# SPDX-License-Identifier: Apache-2.0
"""The README is short, its programs run and its lines for other libraries switch; the links of
every document lead somewhere, and the command line takes every command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from benchmarks.render.commands import leaves
from benchmarks.render.overview import WORKLOADS
from flash_attention import compat
from flash_attention.reference.judge import check_output
from flash_attention_workbench.bench.comparison import compare
from flash_attention_workbench.bench.results import load
from flash_attention_workbench.commands.commands import app

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
    opening = README.read_text().partition("\n## ")[0]
    assert len(opening.split()) <= 90


def test_it_is_faster_in_the_mean_of_every_workload_as_it_says() -> None:
    text = README.read_text()
    assert "faster than FlashAttention-3 and cuDNN in the mean of every workload below" in text
    means = re.findall(r"\| ([\d.]+) \| [\d.]+ to [\d.]+ \|$", text, re.M)
    assert len(means) == len(WORKLOADS)
    assert min(map(float, means)) > 1


def test_its_programs_run() -> None:
    assert len(PROGRAMS) == 2
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    for program in PROGRAMS:
        exec(compile(program, "README.md", "exec", dont_inherit=True), names)
        causal = "causal=True" in program
        assert check_output(names["o"], names["q"], names["k"], names["v"], causal=causal).ok


def test_one_line_switches_other_libraries() -> None:
    transformers = pytest.importorskip("transformers")
    table = README.read_text().partition("| you have |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| [^|`]+ \| `([^`]+)` \| `([^`]+)`", table, re.M)
    register, route, install = ("\n".join(row) for row in rows)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 1}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=1, vocab_size=99)
    model = transformers.LlamaForCausalLM(config).eval()
    names: dict[str, Any] = {"model": model, "ids": torch.arange(3, 20)[None]}
    expected = model(names["ids"]).logits
    exec(route, names)
    assert names["routed"].here == 1
    torch.testing.assert_close(names["out"].logits, expected, atol=1e-4, rtol=1e-4)
    before = compat.calls["transformers"]
    exec(register, names)
    torch.testing.assert_close(model(names["ids"]).logits, expected, atol=1e-4, rtol=1e-4)
    assert compat.calls["transformers"] == before + 1
    try:
        exec(f"{install}\nimport flash_attn", names)
        assert names["flash_attn"].__version__.endswith("+flash.attention")
    finally:
        compat.uninstall()


def commands_of(document: Path) -> list[str]:
    blocks = re.findall(r"^```(?:console|bash)?\n(.*?)^```", document.read_text(), re.S | re.M)
    lines = re.findall(r"^(?:\$ )?(flash-attention [a-z].*)$", "\n".join(blocks), re.M)
    return [re.split(r" [>|#] | &", line)[0] for line in lines]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_command_line_takes_every_command(document: Path) -> None:
    known = dict(leaves(typer.main.get_command(app)))
    for line in commands_of(document):
        words = shlex.split(line)
        name = max((n for n in known if words[: len(n.split())] == n.split()), key=len)
        known[name].make_context(name, words[len(name.split()) :])


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


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_picture_has_an_alternative_text(document: Path) -> None:
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", document.read_text())
    assert [path for words, path in pictures if len(words) < 50] == []


def test_pictures_are_told_in_words_too() -> None:
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", README.read_text())
    assert [path for _, path in pictures] == ["docs/fa3.png", "docs/ladder.png"]
    assert all(len(words) > 80 for words, _ in pictures)
    measured = load(ROOT / "results" / "h200_ladder.json")
    percent = {entry.number: 100 * entry.mean_of_fa2 for entry in compare(measured).entries}
    numbers = [(int(n), int(p)) for n, p in re.findall(r"rung (\d+)\D+(\d+) %", pictures[1][0])]
    assert [number for number, _ in numbers] == [1, 16, 26]
    assert numbers == [(number, round(percent[number])) for number, _ in numbers]
