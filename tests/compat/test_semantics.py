# SPDX-License-Identifier: Apache-2.0
"""The document of flash-attn's semantics: every parameter is in it, every row has its tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.render.blocks import marked_block
from flash_attention.compat import (
    bert_padding,
    flash_attn,
    flash_attn_3,
    flash_attn_passes,
    rotary_layers,
)
from tests.compat import (
    test_8_bit_cache,
    test_alibi,
    test_bert_padding,
    test_flash_attn,
    test_flash_attn_3,
    test_flash_attn_cache,
    test_flash_attn_passes,
    test_flash_attn_rotary,
    test_flash_attn_semantics,
    test_kv_cache,
    test_new_rows,
    test_rotary_layers,
    test_values,
)
from tests.compat.semantics import TABLES, block, modules_block

DOCUMENT = Path(__file__).parents[2] / "docs" / "flash_attn_semantics.md"
MODULES = (
    test_8_bit_cache,
    test_alibi,
    test_bert_padding,
    test_flash_attn,
    test_flash_attn_3,
    test_flash_attn_cache,
    test_flash_attn_passes,
    test_flash_attn_rotary,
    test_flash_attn_semantics,
    test_kv_cache,
    test_new_rows,
    test_rotary_layers,
    test_values,
)
FUNCTIONS = [
    (getattr(module, name), tables)
    for module, tables in (
        (flash_attn, ("every-function", "packed", "with-a-cache")),
        (flash_attn_3, TABLES),
        (bert_padding, ("padding",)),
        (flash_attn_passes, ("passes",)),
        (rotary_layers, ("rotary",)),
    )
    for name in module.__all__
    if name != "get_scheduler_metadata"
]
ROWS = [row for rows in TABLES.values() for row in rows]


def names_in(module: ModuleType) -> set[str]:
    """The tests of a module."""
    return {name for name in vars(module) if name.startswith("test_")}


@pytest.mark.parametrize("name", TABLES)
def test_the_document_has_the_rows(name: str) -> None:
    assert marked_block(DOCUMENT.read_text(), name) == block(name, TABLES[name])


def test_the_document_has_the_modules() -> None:
    assert marked_block(DOCUMENT.read_text(), "modules") == modules_block()


def test_every_row_is_shown_by_tests_that_exist_and_every_test_shows_a_row() -> None:
    assert all(row.tests for row in ROWS)
    named = {test for row in ROWS for test in row.tests}
    assert named == set().union(*map(names_in, MODULES))


@pytest.mark.parametrize(("function", "tables"), FUNCTIONS)
def test_every_parameter_has_a_row(function: Callable[..., Any], tables: Iterable[str]) -> None:
    described = {name for table in tables for row in TABLES[table] for name in row.parameters}
    assert set(inspect.signature(function).parameters) <= described


def test_every_refusal_of_version_3_has_a_row() -> None:
    described = {name for row in TABLES["version-3"] for name in row.parameters}
    assert set(flash_attn_3.INSTEAD) <= described
