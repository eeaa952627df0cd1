# SPDX-License-Identifier: Apache-2.0
"""The kernel that combines parts is launched early: it touches no memory before it has waited."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

import pytest

from flash_attention.compiler import INCLUDE_DIR, CompiledKernel, compile_kernel
from flash_attention.features import Features, SplitKind
from flash_attention.kernel_configs import DType
from flash_attention.sass import InspectorMissing, disassemble, instruction_mix, opcode_counts
from flash_attention.translation_unit import combine_unit
from tests.emulator.edits import Edit, edited_headers

WAIT, CALL = "griddepcontrol.wait", "ptx::wait_for_grid();"
ACCESS = re.compile(r"\b(ld|st|atom|red|cp)\.(?!param|shared)")
BRANCH = re.compile(r"\bbra\b|^\$", re.MULTILINE)


def compiled(features: Features, include_dir: Path = INCLUDE_DIR) -> CompiledKernel:
    source = combine_unit(DType.BF16, features, tile_rows=64 // 7 * 7)
    return compile_kernel(source, arch="sm_90a", name="combine", include_dir=include_dir)


def waits_first(ptx: str) -> bool:
    """Whether every thread waits for the grid before it may touch memory that others see."""
    assert ACCESS.search(ptx)
    before, wait, _ = ptx.partition(WAIT)
    return bool(wait) and not ACCESS.search(before) and not BRANCH.search(before)


@pytest.mark.parametrize("heads_together", [1, 7])
@pytest.mark.parametrize("splits", [SplitKind.CHUNKED, SplitKind.EVEN])
def test_no_access_comes_before_the_wait(splits: SplitKind, heads_together: int) -> None:
    kernel = compiled(Features(splits=splits, heads_together=heads_together))
    assert waits_first(kernel.ptx)
    try:
        code = disassemble(kernel.cubin)
    except InspectorMissing as missing:
        pytest.skip(str(missing))
    before = list(takewhile(lambda one: one.name != "ACQBULK", code))
    assert len(before) < len(code)
    assert all(one.name != "BRA" for one in before)
    mix = instruction_mix(opcode_counts(before))
    assert (mix["global"], mix["async copy"]) == (0, 0)
    assert instruction_mix(opcode_counts(code))["global"] > 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (CALL, ""),
        (f"{CALL}  // the parts are here\n  row.run();", f"row.run(); {CALL}"),
        (CALL, f"if (threadIdx.x == 0) {CALL}"),
    ],
    ids=["left out", "too late", "by one thread"],
)
def test_a_wait_in_the_wrong_place_is_seen(old: str, new: str, tmp_path: Path) -> None:
    include = edited_headers([Edit("sm90/combine.cuh", old, new)], tmp_path)
    assert not waits_first(compiled(Features(splits=SplitKind.EVEN), include).ptx)
