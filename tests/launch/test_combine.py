# SPDX-License-Identifier: Apache-2.0
"""The kernel that combines parts is launched early: it touches no memory before it has waited."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

import pytest

from flash_attention.call.call import Call
from flash_attention.compile import INCLUDE_DIR, CompiledKernel, compile_kernel
from flash_attention.families.sm90.forward.combine import THREADS, combine_unit
from flash_attention.families.sm90.forward.features import Sm90Features, SplitKind
from flash_attention.kernel_configs import DType
from flash_attention.launch.kernels import load_unit
from flash_attention.launch.plan import Plan
from flash_attention_workbench.inspect.sass import (
    InspectorMissing,
    disassemble,
    instruction_mix,
    opcode_counts,
)
from tests.emulator.edits import Edit, edited_headers
from tests.launch.calls import HOPPER, grouped

WAIT, CALL = "griddepcontrol.wait", "ptx::wait_for_grid();"
WEIGHTS = "  const auto weights = row.weights();"
ACCESS = re.compile(r"\b(ld|st|atom|red|cp)\.(?!param|shared)")
BRANCH = re.compile(r"\bbra\b|^\$", re.MULTILINE)


def compiled(features: Sm90Features, include_dir: Path = INCLUDE_DIR) -> CompiledKernel:
    unit = combine_unit(DType.BF16, features, tile_rows=64 // 7 * 7, d_v=128, target="sm_90a")
    return compile_kernel(unit.source, arch=unit.target, name=unit.name, include_dir=include_dir)


def waits_first(ptx: str) -> bool:
    """Whether every thread waits for the grid before it may touch memory that others see."""
    assert ACCESS.search(ptx)
    before, wait, _ = ptx.partition(WAIT)
    return bool(wait) and not ACCESS.search(before) and not BRANCH.search(before)


@pytest.mark.usefixtures("two_launches")
def test_the_second_step_of_split_keys_combines_and_is_the_one_that_starts_early() -> None:
    q, k, v = grouped(seq_q=2, seq_k=300)
    plan = Plan(Call(q, k, v, split_keys=128), HOPPER)
    main, combine = plan.recipe.steps
    assert (main.starts_early, combine.starts_early) == (False, True)
    assert (combine.unit.name, combine.unit.target) == (
        "combine_fp16_126_heads_3_fixed",
        "sm_90a",
    )
    assert combine.geometry.grid == (2 * 6, 1, 1)
    assert (combine.geometry.block, combine.geometry.smem_bytes) == (THREADS, 0)
    assert combine.maps == {}
    kernel = load_unit(combine.unit).compiled
    assert waits_first(kernel.ptx)
    assert (kernel.resources.spill_bytes, kernel.arch) == (0, "sm_90a")
    (only,) = Plan(Call(q, k, v), HOPPER).recipe.steps
    assert not only.starts_early


@pytest.mark.parametrize("heads_together", [1, 7])
@pytest.mark.parametrize("splits", [SplitKind.FIXED, SplitKind.EVEN])
def test_no_access_comes_before_the_wait(splits: SplitKind, heads_together: int) -> None:
    kernel = compiled(Sm90Features(splits=splits, heads_together=heads_together))
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


def test_packed_queries_are_only_looked_up_before_the_wait() -> None:
    features = Sm90Features(splits=SplitKind.EVEN, heads_together=128)
    unit = combine_unit(DType.BF16, features, 128, 512, "sm_90a", packed=True)
    ptx = compile_kernel(unit.source, arch=unit.target, name=unit.name).ptx
    before, wait, _ = ptx.partition(WAIT)
    assert wait
    assert {access[1] for access in ACCESS.finditer(before)} == {"ld"}
    assert not re.search(r"\b(ret|exit)\b", before)


@pytest.mark.parametrize(
    "edits",
    [
        {CALL: ""},
        {CALL: "", WEIGHTS: f"{WEIGHTS} {CALL}"},
        {CALL: f"if (threadIdx.x == 0) {CALL}"},
    ],
    ids=["left out", "too late", "by one thread"],
)
def test_a_wait_in_the_wrong_place_is_seen(edits: dict[str, str], tmp_path: Path) -> None:
    made = [Edit("sm90/combine.cuh", old, new) for old, new in edits.items()]
    include = edited_headers(made, tmp_path)
    assert not waits_first(compiled(Sm90Features(splits=SplitKind.EVEN), include).ptx)
