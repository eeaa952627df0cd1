# SPDX-License-Identifier: Apache-2.0
"""The table of mutations of PTX is that of these kernels, and some of its rows are run again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.render.blocks import marked_block
from flash_attention.compile.nvrtc import nvrtc_version
from flash_attention.launch.emulation import Settings
from tests.emulator.ptx_kernels import KERNELS, Kernel
from tests.emulator.ptx_mutations import A_KERNEL, RESULTS, block, chosen, found, kinds, listed
from tests.emulator.ptx_reasons import REASONS
from tests.gate import in_turn

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "emulator_mutations.md"
STORED = json.loads(RESULTS.read_text())
ROWS = [(kernel["name"], row) for kernel in STORED["kernels"] for row in kernel["mutations"]]
RUN_AGAIN = "python -m tests.emulator.ptx_mutations run"
ALWAYS = (KERNELS[0], KERNELS[1], KERNELS[3])

same_compiler = pytest.mark.skipif(
    STORED["nvrtc"] != nvrtc_version(), reason="another NVRTC writes other PTX"
)


def rows(kernel: Kernel) -> list[dict[str, Any]]:
    return [row for name, row in ROWS if name == kernel.name]


@same_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(
            kernel, id=kernel.name, marks=() if kernel in ALWAYS else pytest.mark.mutations
        )
        for kernel in KERNELS
    ],
)
def test_the_stored_mutations_are_those_of_the_kernel(kernel: Kernel) -> None:
    """But for the numbers of lines and registers, which move with every change of a kernel."""
    here = [_named(listed(kernel, site)) for site in chosen(kernel)]
    assert here == [_named(row) for row in rows(kernel)], RUN_AGAIN


def _named(row: dict[str, Any]) -> tuple[str, int, str, str]:
    instruction = re.sub(r"%(\w+?)\d+", r"%\1", row["instruction"])
    return row["mistake"], row["place"], row["where"], instruction


@same_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "place"), in_turn(ALWAYS, [1, 8, 16], id_of=lambda kernel: str(kernel.name))
)
def test_a_mutation_gives_what_was_stored(kernel: Kernel, place: int) -> None:
    site, row = chosen(kernel)[place], rows(kernel)[place]
    seen = kinds(kernel.run(site.plant(kernel.ptx), Settings(), site.number))
    assert seen == row["found"]["lockstep"], RUN_AGAIN


@same_compiler
@pytest.mark.slow
@pytest.mark.parametrize("kernel", ALWAYS, ids=lambda kernel: kernel.name)
def test_without_a_mutation_nothing_is_found(kernel: Kernel) -> None:
    assert kernel.run(kernel.ptx, Settings(), kernel.sites[0].number) == set()


def test_there_are_a_hundred_mutations() -> None:
    assert [len(rows(kernel)) for kernel in KERNELS] == [A_KERNEL] * len(KERNELS)
    assert len(ROWS) == 100


def test_what_is_not_found_is_harmless_for_a_reason() -> None:
    missed = {(name, r["mistake"], r["place"]): r for name, r in ROWS if found(r) == "nothing"}
    assert missed.keys() == REASONS.keys()
    unproved = [key for key, row in missed.items() if REASONS[key].beside and not row["both"]]
    assert unproved == []


def test_the_documented_table_is_that_of_the_stored_run() -> None:
    assert marked_block(DOCUMENT.read_text(), "ptx-mutations") == block(STORED)
