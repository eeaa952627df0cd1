# SPDX-License-Identifier: Apache-2.0
"""docs/switch.md: it shows every example of a switch as it is, and its other programs run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "switch.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.S | re.M))
EXAMPLES = {
    "torch": "switch_torch.py",
    "transformers": "switch_transformers.py",
    "flash-attn": "switch_flash_attn.py",
    "Transformer Engine and Megatron": "switch_transformer_engine.py",
    "vLLM": "switch_vllm.py",
    "SGLang": "switch_sglang.py",
}
ROWS = ["the switch", "what it replaces", "is it on?", "what is not computed here", "switch back"]
LINES = 15  # of a program, without imports and blank lines


def program_of(name: str) -> str:
    text = (ROOT / "examples" / name).read_text()
    return re.split(r'^""".*?"""\n\n', text, maxsplit=1, flags=re.S | re.M)[1]


def programs() -> list[str]:
    found: list[str] = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    return found


def ran_program(line: str) -> dict[str, Any]:
    """What the one program with a line of this beginning leaves behind."""
    (program,) = (p for p in programs() if re.search(f"^{line}", p, re.M))
    namespace: dict[str, Any] = {}
    exec(compile(program, "docs/switch.md", "exec", dont_inherit=True), namespace)
    return namespace


@pytest.mark.parametrize("program", programs())
def test_programs_are_short(program: str) -> None:
    lines = [line for line in program.splitlines() if line]
    assert len([line for line in lines if not line.startswith(("import", "from"))]) <= LINES


def test_every_switch_has_a_section_and_an_example() -> None:
    assert list(SECTIONS) == list(EXAMPLES)
    assert {*EXAMPLES.values()} == {p.name for p in (ROOT / "examples").glob("switch_*.py")}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_section_answers_the_same_questions_with_its_example(name: str) -> None:
    assert re.findall(r"^\| ([a-z ?]+) \|", SECTIONS[name], re.M) == ROWS
    assert f"```python\n{program_of(EXAMPLES[name])}```" in SECTIONS[name]


def test_calls_are_routed_as_it_says() -> None:
    pytest.importorskip("torch.nn.attention.varlen")
    first, routing = re.findall(r"```python\n(.*?)```", SECTIONS["torch"], re.S)
    namespace: dict[str, Any] = {}
    exec(compile(first, "docs/switch.md", "exec", dont_inherit=True), namespace)
    exec(compile(routing, "docs/switch.md", "exec", dont_inherit=True), namespace)
    assert f"print(routed)  # {namespace['routed']}\n" in routing
