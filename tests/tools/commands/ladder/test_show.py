# SPDX-License-Identifier: Apache-2.0
"""`ladder show`: the rung as a file, or its translation unit alone."""

from __future__ import annotations

from flash_attention.compile.unit import translation_unit
from flash_attention.kernel_configs import DType
from flash_attention.ladder import get_ladder
from flash_attention.tools.commands.ladder.one_file import one_file
from tests.tools.commands.invoke import invoke


def test_it_prints_the_one_file_unchanged() -> None:
    unit = translation_unit(get_ladder()[4].config)
    assert invoke("ladder", "show", "5") == one_file(unit)


def test_source_is_the_translation_unit() -> None:
    ladder = get_ladder(DType.BF16, 64, 8)
    options = ("--dtype", "bf16", "--d-head", "64", "--heads", "8")
    for rung in (ladder[15], ladder[-1]):
        printed = invoke("ladder", "show", str(rung.number), "--source", *options)
        assert printed == translation_unit(rung.config)
