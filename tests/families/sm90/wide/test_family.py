# SPDX-License-Identifier: Apache-2.0
"""The family of wide heads: what it chooses, its recipes, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import attention, explain, forward
from flash_attention.arch import ARCHES, MEASURED_ARCH
from flash_attention.call.features import CAUSAL, PLAIN, Features, MaskKind
from flash_attention.call.problem import Problem
from flash_attention.choose.rules import choose
from flash_attention.compile import compile_kernel
from flash_attention.errors import UnsupportedError
from flash_attention.families.recipe import Setting
from flash_attention.families.sm90.forward.features import Sm90Features, SplitKind
from flash_attention.families.sm90.wide.family import SM90_WIDE
from flash_attention.launch.plan import Plan
from flash_attention.reference.oracle import oracle
from tests.families.sm90.wide.cases import FULL, NARROW
from tests.feature_cases import Case

SMS = 132


def problem(
    queries: int, keys: int, *, heads: int = 8, heads_k: int = 8, d: int = 512, d_v: int = 512
) -> Problem:
    return Problem(*(1, queries, keys, heads, heads_k, d, d_v, torch.bfloat16, d**-0.5))


def tensors(d: int = 512, d_v: int = 512, heads_k: int = 2, **others: Any) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, d), (heads_k, d), (heads_k, d_v))
    drawn = (torch.randn(1, 70, heads, width, generator=generator) for heads, width in shapes)
    return [tensor.bfloat16().requires_grad_(others.get("grad", False)) for tensor in drawn]


# choosing


@pytest.mark.parametrize(
    ("d", "d_v", "columns"),
    [
        *((512, 512, (512, 512)), (264, 264, (320, 384)), (8, 264, (64, 384))),
        *((512, 8, (512, 128)), (320, 320, (320, 384)), (448, 384, (448, 384))),
    ],
)
def test_the_smallest_columns_that_hold_a_problem_are_chosen(
    d: int, d_v: int, columns: tuple[int, int]
) -> None:
    asked = problem(4096, 4096, d=d, d_v=d_v)
    choice = choose(asked, Setting(MEASURED_ARCH, SMS))
    assert choice.config == replace(FULL, d_head=columns[0], d_v=columns[1])
    assert f"d_head {d} with d_v {d_v}" in SM90_WIDE.why(FULL, asked, None)


@pytest.mark.parametrize(("d", "d_v"), [(256, 256), (64, 256), (128, 128)])
def test_narrower_heads_have_other_kernels(d: int, d_v: int) -> None:
    choice = choose(problem(4096, 4096, d=d, d_v=d_v), Setting(MEASURED_ARCH, SMS))
    assert not isinstance(choice.config, type(FULL))


def test_one_head_of_k_with_dimensions_of_mla_is_mla_and_several_are_not() -> None:
    of_one = choose(problem(1, 4096, heads_k=1, d=320, d_v=256), Setting(MEASURED_ARCH, SMS))
    of_two = choose(problem(1, 4096, heads_k=2, d=320, d_v=256), Setting(MEASURED_ARCH, SMS))
    assert [type(choice.config).__name__ for choice in (of_one, of_two)] == [
        "HopperMlaKernelConfig",
        "HopperWideKernelConfig",
    ]


@pytest.mark.parametrize(
    ("queries", "heads_k", "kind"),
    [(1, 2, SplitKind.FIXED), (16, 2, SplitKind.FIXED), (17, 2, None), (4096, 8, None)],
)
def test_the_keys_of_decoding_are_split(queries: int, heads_k: int, kind: SplitKind | None) -> None:
    asked = problem(queries, 8192, heads_k=heads_k)
    kv_splits = choose(asked, Setting(MEASURED_ARCH, SMS)).setting.split
    assert (kv_splits.kind if kv_splits else None) == kind
    if kv_splits:
        assert kv_splits.num_ctas(asked, 1) <= SMS < 2 * kv_splits.num_ctas(asked, 1)


# compiled kernels


@pytest.mark.slow
@pytest.mark.parametrize(
    "features",
    [
        *(PLAIN, CAUSAL, Features(MaskKind.WINDOW, True, True, sinks=True)),
        Features(per_batch=True, page_keys=64),
        Sm90Features(heads_together=8, decode=True, splits=SplitKind.EVEN),
    ],
    ids=str,
)
def test_loops_are_neither_serialised_nor_short_of_registers(features: Features) -> None:
    unit = SM90_WIDE.unit(FULL, features, MEASURED_ARCH)
    compiled = compile_kernel(unit.source, arch=unit.target, name=unit.name)
    assert compiled.resources.notes == ()
    assert compiled.resources.spill_store_bytes == 0


# recipes


def test_a_recipe_loads_boxes_of_64_columns() -> None:
    made = Case("", 200, 300, 512, 512, heads=6, heads_k=2).make()
    recipe = Plan(made.call(), FULL).recipe
    (main,) = recipe.steps
    assert (recipe.tiles, recipe.counts_tiles) == (6 * 4, True)
    assert main.geometry.smem_bytes == FULL.smem_bytes()
    assert {name: of.box for name, of in main.maps.items()} == {
        "q": (64, 1, 64, 1),
        "k": (64, 1, 64, 1),
        "v": (64, 1, 64, 1),
    }


def test_ctas_are_as_many_as_tiles_or_multiprocessors() -> None:
    made = Case("", 200, 300, 512, 512, heads=6, heads_k=2).make()
    plan = Plan(made.call(), FULL)
    for sms, ctas in ((132, 24), (10, 10)):
        recipe = SM90_WIDE.recipe(FULL, plan.problem, plan.views, Setting(MEASURED_ARCH, sms))
        assert recipe.steps[0].geometry.grid == (ctas, 1, 1)


def test_partial_results_are_combined_by_a_second_kernel() -> None:
    made = Case("", 2, 300, 512, 512, heads=8, heads_k=2).make()
    recipe = Plan(made.call(split_keys=128), FULL).recipe
    main, combine = recipe.steps
    assert main.geometry.grid == (2 * 3, 1, 1)
    assert main.maps["q"].box == (64, 4, 16, 1)
    assert combine.geometry.grid == (8 * 2, 1, 1)
    assert recipe.scratch == {"o_partial": 6 * 8 * 512 * 4, "lse_partial": 6 * 8 * 4}


def test_pages_narrow_the_boxes_of_keys() -> None:
    assert Sm90Features(page_keys=16).box_keys(FULL.B_c) == 16


# refusing


def test_larger_tensors_than_the_config_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="up to 128 and d_v up to 128, the tensors have 512"):
        forward(NARROW, *tensors())
    q, k, v = (tensor.half() for tensor in tensors())
    with pytest.raises(UnsupportedError, match=r"config is for torch\.bfloat16, the tensors are"):
        forward(FULL, q, k, v)


def test_packed_queries_are_not_split() -> None:
    made = Case("", (10,), (70,), 512, 512).make()
    with pytest.raises(UnsupportedError, match="the keys of packed queries are not split"):
        forward(FULL, made.q, made.k, made.v, split_keys=64, **made.arguments)
    packed = replace(problem(1, 8192, heads_k=1), batch=4, total_q=4, seqused_k=True)
    choice = choose(packed, Setting(MEASURED_ARCH, SMS))
    assert (choice.config.prefix, choice.setting.split) == (FULL.prefix, None)


def test_heads_over_512_are_refused() -> None:
    q = torch.zeros(1, 4, 2, 520, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedError, match="q has d_head 520; the kernels take at most 512"):
        forward(FULL, q, q, q)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_120"])
def test_other_architectures_are_told_which_gpu_has_a_kernel(arch: str) -> None:
    with pytest.raises(UnsupportedError, match=r"on sm_\d+: head dimensions over 256 need sm_90"):
        choose(problem(4096, 4096), Setting(ARCHES[arch], SMS))


# the rest of the package


def test_torch_computes_on_the_cpu_with_gradients() -> None:
    q, k, v = tensors(grad=True)
    out = attention(q, k, v, causal=True)
    torch.testing.assert_close(
        out.double(), oracle(*(t.detach() for t in (q, k, v)), causal=True), rtol=0, atol=1e-2
    )
    out.sum().backward()
    assert v.grad is not None
    assert float(v.grad.sum()) == pytest.approx(out.numel(), rel=1e-2)


def test_a_head_dimension_that_is_no_multiple_of_8_is_padded() -> None:
    q, k, v = tensors(d=300, d_v=270)
    out = attention(q, k, v, config=FULL)
    torch.testing.assert_close(out.double(), oracle(q, k, v), rtol=0, atol=1e-2)


def test_no_keys_are_zero_and_no_queries_are_empty() -> None:
    q, k, v = tensors()
    out = attention(q, k[:, :0], v[:, :0], config=FULL)
    assert (out.shape, out.abs().max().item()) == (q.shape, 0)
    assert attention(q[:, :0], k, v, config=FULL).shape == (1, 0, 2, 512)


def test_explain_names_the_kernel_and_the_reason() -> None:
    text = str(explain(*tensors()))
    assert "hopper_wide(BF16, 512, 512): lazy_8" in text
    assert "other kernels have at most 256" in text
