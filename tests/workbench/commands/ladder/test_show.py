# SPDX-License-Identifier: Apache-2.0
"""`ladder show`: the rung as a file, or its translation unit alone."""

from __future__ import annotations

from flash_attention.families.passes import Pass
from flash_attention.families.registry import unit_of
from flash_attention.kernel_configs import DType
from flash_attention.ladder import get_ladder
from flash_attention_workbench.commands.ladder.show import title_of
from flash_attention_workbench.ladder.one_file import one_file
from tests.workbench.commands.invoke import invoke


def test_it_prints_the_one_file_unchanged() -> None:
    ladder = get_ladder()
    rung = ladder[4]
    expected = one_file(unit_of(rung.config).source, title_of(rung, ladder))
    assert invoke("ladder", "show", "5") == expected


def test_the_file_says_what_the_rung_is_and_how_to_compile_it() -> None:
    ladder = get_ladder()
    first, last = title_of(ladder[0], ladder), title_of(ladder[-1], ladder)
    assert first[0] == f"Rung 1 of {len(ladder)}, base: {ladder[0].idea}."
    assert not any("changes" in sentence for sentence in first)
    assert "It changes one field of the rung below: prefetch_q: False -> True." in last
    assert any(line.endswith("nvcc -std=c++20 -arch=sm_80 -cubin rung1.cu") for line in first)
    assert any(line.endswith(f"-arch=sm_90a -cubin rung{len(ladder)}.cu") for line in last)
    assert last[-1] == f"config: {ladder[-1].config.short_form()}"
    assert max(len(line) for line in (*first, *last[:-1])) <= 97


def test_source_is_the_translation_unit() -> None:
    ladder = get_ladder(DType.BF16, 64, 8)
    options = ("--dtype", "bf16", "--d-head", "64", "--heads", "8")
    for rung in (ladder[15], ladder[-1]):
        printed = invoke("ladder", "show", str(rung.number), "--source", *options)
        assert printed == unit_of(rung.config).source


def test_a_rung_of_the_backward_pass() -> None:
    ladder = get_ladder(pass_=Pass.BACKWARD)
    for number in (2, len(ladder)):
        rung = ladder[number - 1]
        printed = invoke("ladder", "show", str(number), "--pass", "backward")
        assert printed == one_file(unit_of(rung.config).source, title_of(rung, ladder))
        assert f"Rung {number} of {len(ladder)}, {rung.name}: " in printed
    source = invoke("ladder", "show", "2", "--pass", "backward", "--source")
    assert source == unit_of(ladder[1].config).source
