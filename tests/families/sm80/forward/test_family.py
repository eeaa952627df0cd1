# SPDX-License-Identifier: Apache-2.0
"""How the sm_80 family answers: which problems fit, the launch they get, the text it compiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention.arch import ARCHES
from flash_attention.call.features import PLAIN
from flash_attention.call.problem import Problem
from flash_attention.compile import ENTRY, compile_kernel
from flash_attention.compile.includes import include_closure
from flash_attention.errors import CompileError, UnsupportedError
from flash_attention.families.fit import MAX_GRID_YZ
from flash_attention.families.registry import unit_of
from flash_attention.families.sm80.forward.family import SM80
from flash_attention.families.sm80.forward.space import combinations, neighbours, search_space
from flash_attention.kernel_configs import DType, FlashForwardKernelConfig
from flash_attention.ladder import get_ladder
from tests.families.problems import recipe_of, views_of

CONFIG = FlashForwardKernelConfig(
    DType.FP16, 128, 64, 32, 4, True, True, True, 0, 2, 2, False, True
)
TOP = next(
    rung.config
    for rung in reversed(get_ladder())
    if isinstance(rung.config, FlashForwardKernelConfig)
)
PROBLEM = Problem(
    batch=5,
    seq_q=192,
    seq_k=512,
    heads=6,
    heads_k=2,
    d_head=128,
    d_v=128,
    dtype=torch.float16,
    softmax_scale=128**-0.5,
)


def refused(message: str) -> Any:
    return pytest.raises(UnsupportedError, match=message)


@pytest.mark.parametrize(
    ("rows", "warps", "seq_q", "q_blocks"), [(64, 4, 192, 3), (128, 8, 256, 2), (64, 4, 64, 1)]
)
def test_every_query_block_of_every_head_gets_a_cta(
    rows: int, warps: int, seq_q: int, q_blocks: int
) -> None:
    config = replace(CONFIG, B_r=rows, n_warps=warps)
    recipe = recipe_of(config, replace(PROBLEM, seq_q=seq_q))
    (step,) = recipe.steps
    assert step.geometry.grid == (q_blocks, 6, 5)
    assert step.geometry.block == 32 * warps
    assert step.geometry.smem_bytes == 2 * 128 * (rows + 32 + 32)
    assert recipe.tiles == q_blocks * 6 * 5


def test_one_kernel_without_maps_counter_or_scratch_is_all() -> None:
    recipe = recipe_of(CONFIG, PROBLEM)
    (step,) = recipe.steps
    assert (dict(step.maps), step.starts_early) == ({}, False)
    assert (recipe.counts_tiles, dict(recipe.scratch), recipe.num_splits) == (False, {}, 0)
    arguments: Any = recipe.arguments
    assert (arguments.batch, arguments.heads, arguments.heads_per_kv) == (5, 6, 3)
    assert (arguments.q, arguments.tile_counter) == (None, None)


def test_an_empty_grid_is_not_launched() -> None:
    assert recipe_of(CONFIG, replace(PROBLEM, seq_q=0)).steps[0].geometry.grid == (1, 6, 5)


@pytest.mark.parametrize("dim", ["batch", "heads"])
def test_the_sides_of_a_grid_have_a_limit(dim: str) -> None:
    size: dict[str, Any] = {dim: MAX_GRID_YZ + 1}
    with refused(rf"{dim} is 65536; a launch takes at most 65535, split the tensors along {dim}"):
        recipe_of(CONFIG, replace(PROBLEM, heads_k=1, **size))
    size = {dim: MAX_GRID_YZ}
    assert 65535 in recipe_of(CONFIG, replace(PROBLEM, heads_k=1, **size)).steps[0].geometry.grid


@pytest.mark.parametrize("name", list("qkvo"))
def test_a_static_row_stride_binds_all_four_tensors(name: str) -> None:
    config = replace(CONFIG, static_row_stride=6 * 128)
    problem = replace(PROBLEM, heads_k=6)
    views = {view.name: view for view in views_of(problem)}
    recipe_of(config, problem, views=list(views.values()))
    views[name] = replace(views[name], strides=(128, 256, 32768, 1))
    with refused(rf"768 elements apart .* rows of {name} are 256 apart"):
        recipe_of(config, problem, views=list(views.values()))
    recipe_of(CONFIG, problem, views=list(views.values()))


def test_keys_are_not_split() -> None:
    message = "split_keys is given, and FlashForwardKernelConfig kernels visit all keys of a row"
    with refused(f"{message} .* leave split_keys out, or pass a HopperForwardKernelConfig"):
        SM80.split(CONFIG, PROBLEM, 64)
    assert not SM80.splits_keys
    assert isinstance(SM80.choose_split(PROBLEM, ARCHES["sm_90"], 132, 64), str)


def test_numbers_go_with_no_problem() -> None:
    assert list(SM80.search_space()) == list(search_space())
    assert SM80.neighbours(CONFIG) == neighbours(CONFIG)
    combined = SM80.combinations(CONFIG.dtype, CONFIG.d_head)
    assert list(combined) == list(combinations(CONFIG.dtype, CONFIG.d_head))
    assert SM80.fitted(CONFIG, PROBLEM, replace(PROBLEM, seq_k=64)) == CONFIG
    assert SM80.suits(CONFIG, PROBLEM)
    assert (SM80.extrapolates, SM80.built_features()) == (False, (PLAIN,))


def test_a_choice_is_told_with_what_was_looked_at() -> None:
    assert SM80.why(CONFIG, PROBLEM, None) == "d_head 128, full"
    assert SM80.why(CONFIG, replace(PROBLEM, window=(5, 0)), None) == "d_head 128, masked"


def test_a_unit_opens_with_the_config_and_has_the_one_entry() -> None:
    unit = unit_of(TOP)
    assert unit.source.startswith(f"// {TOP.short_form()}\n#include <fa/sm80/forward.cuh>\n")
    assert unit.source.count('extern "C" __global__') == 1
    entry = f"{ENTRY}_{TOP.kernel_name()}"
    assert f"{entry}(\n    const __grid_constant__ fa::ForwardKernelArgs args)" in unit.source
    assert "__launch_bounds__(128)" in unit.source
    assert (unit.name, unit.target) == (TOP.kernel_name(), "sm_80")
    assert unit_of(TOP, arch=ARCHES["sm_90"]).target == "sm_90"


def test_only_the_named_schedule_is_included() -> None:
    eager, lazy = (f"fa/sm80/schedule/{name}.cuh" for name in ("eager", "lazy"))
    closure = include_closure(unit_of(TOP).source)
    assert eager in closure
    assert lazy not in closure
    other = include_closure(unit_of(replace(TOP, eager_load_blocks=False)).source)
    assert lazy in other
    assert eager not in other


def test_a_variant_that_breaks_its_contract_is_named_first() -> None:
    source = unit_of(TOP).source.replace(
        "struct Config {",
        "struct Forgetful { static __device__ int place(int, int); };\nstruct Config {",
    )
    source = source.replace("fa::sm80::layout::XorSwizzle;", "Forgetful;")
    with pytest.raises(CompileError) as error:
        compile_kernel(source, arch="sm_80", name="forgetful")
    first_error = error.value.log.split("error:")[1]
    assert "Layout: place(row, chunk), advance(address, bytes)" in first_error
