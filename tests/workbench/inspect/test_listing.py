# SPDX-License-Identifier: Apache-2.0
"""The hot loop is marked in machine code, PTX and CUDA, and what it cannot be in is not."""

from __future__ import annotations

import pytest

from flash_attention.call.features import PLAIN
from flash_attention.ladder import get_ladder
from flash_attention_workbench.inspect import listing, sass
from flash_attention_workbench.inspect.inspection import Inspection, inspect_config

PRODUCT = {16: ("HMMA", "mma.sync"), 26: ("HGMMA", "wgmma.mma_async")}


def kernel(number: int) -> Inspection:
    config = get_ladder()[number - 1].config
    return inspect_config(config, config.default_arch, PLAIN)


@pytest.mark.parametrize("number", PRODUCT)
def test_machine_code_and_ptx_have_the_same_products_in_the_loop(number: int) -> None:
    inspection = kernel(number)
    try:
        machine = inspection.machine_loop()
    except sass.InspectorMissing as missing:
        pytest.skip(str(missing))
    opcode, mnemonic = PRODUCT[number]
    of_sass = [line for line in listing.marked_sass(machine) if line.startswith(listing.HOT)]
    of_ptx = [
        line for line in listing.marked_ptx(inspection.compiled.ptx) if line[:1] == listing.HOT
    ]
    products = sum(f" {opcode}." in line for line in of_sass)
    assert products == sum(mnemonic in line for line in of_ptx) > 0
    assert len(of_sass) == len(machine.loop.lines - machine.loop.skippable)


@pytest.mark.parametrize(
    ("number", "hot", "cold"),
    [
        (16, "fa/sm80/mma.cuh", "fa/sm80/store.cuh"),
        (26, "fa/sm90/schedule/overlapped.cuh", "fa/sm90/output.cuh"),
    ],
)
def test_source_lines_of_the_loop_are_marked(number: int, hot: str, cold: str) -> None:
    compiled = kernel(number).compiled
    files = {file.name: file for file in listing.source_files(compiled)}
    assert files[hot].hot
    assert not files[cold].hot
    assert list(files)[-1] == listing.UNIT
    for file in files.values():
        marked = list(file.marked())
        assert len(marked) == len(file.text.splitlines())
        assert {n for n, line in enumerate(marked, 1) if line[:1] == listing.HOT} == file.hot


def test_a_text_without_a_loop_is_left_unmarked() -> None:
    assert list(listing.marked_ptx("mov.u32 %r1, 0;\nret;")) == ["  mov.u32 %r1, 0;", "  ret;"]
