# SPDX-License-Identifier: Apache-2.0
"""The references of functions and commands are complete and current."""

from __future__ import annotations

import inspect
import re
from enum import Enum
from pathlib import Path

import pytest

import flash_attention
from benchmarks.render import api, commands
from benchmarks.render.blocks import marked_block
from flash_attention import errors

ROOT = Path(__file__).resolve().parents[3]
RENDER = "run `python -m benchmarks.render` at the root of the checkout"


def section(page: str, name: str) -> str:
    return page.partition(f"\n### `{name}`\n")[2].partition("\n### ")[0]


def test_the_stored_pages_are_current() -> None:
    assert (ROOT / api.DOCUMENT).read_text() == api.api_page(), RENDER
    block = marked_block((ROOT / commands.DOCUMENT).read_text(), commands.COMMANDS)
    assert block == commands.commands_block(), RENDER


@pytest.mark.slow
@pytest.mark.parametrize("document", commands.PLANTS, ids=str)
def test_the_document_shows_what_is_found(document: Path) -> None:
    stored = marked_block((ROOT / document).read_text(), commands.FINDING)
    number = re.compile(r"(0x)?\d[\da-f.e-]*")  # of lines, addresses, lanes and errors
    assert number.sub("#", stored) == number.sub("#", commands.finding_block(document)), RENDER
    assert "findings: " in stored


def test_every_public_name_is_there_with_its_arguments() -> None:
    page = api.api_page()
    for name in flash_attention.__all__:
        value = getattr(flash_attention, name)
        if not callable(value):
            continue
        shown = section(page, name)
        assert inspect.cleandoc(value.__doc__ or "") in shown, name
        if isinstance(value, type) and (issubclass(value, Enum | Exception)):
            continue
        for argument in inspect.signature(value).parameters.values():
            assert f"{argument.name}: " in shown, (name, argument)


def test_every_error_says_what_it_is_a_kind_of() -> None:
    page = api.api_page()
    for name, error in vars(errors).items():
        if isinstance(error, type) and issubclass(error, Exception):
            bases = ", ".join(base.__name__ for base in error.__bases__)
            assert f"class {name}({bases})" in section(page, name)
    assert "Attributes: `rule`." in section(page, "KernelConfigError")


def test_every_environment_variable_is_described() -> None:
    used = api.variables_used()
    assert {"FLASH_ATTENTION_CACHE_DIR", "FLASH_ATTENTION_TABLE"} <= used
    assert used - set(api.VARIABLES) == set()
    listed = api.api_page().partition("## Environment variables")[2]
    for name in used:
        assert f"| `{name}` | {api.VARIABLES[name]} |" in listed


def test_every_command_is_there_with_its_options() -> None:
    block = commands.commands_block()
    assert "### `flash-attention inspect CONFIG`" in block
    assert "| `--causal`, `--full` |  | only this mask |" in block
    assert "| `--grid` | `quick` | shapes to time: seed or quick |" in block


def test_the_contents_lead_to_the_first_heading_of_a_name() -> None:
    page = api.api_page()
    headings = [text.lower() for text in re.findall(r"^##+ `?([^`\n]+)`?$", page, re.M)]
    for text, anchor in re.findall(r"\[`([^`]+)`\]\(#(\w+)\)", api.contents()):
        first = next(one for one in headings if one.replace(".", "") == anchor)
        assert first == text.lower()
    for name in flash_attention.__all__:
        if callable(getattr(flash_attention, name)):
            assert f"`{name}`" in api.contents()
