# SPDX-License-Identifier: Apache-2.0
"""The backward pass of wide heads: its config, what is chosen, its recipes, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import attention, backward, explain
from flash_attention.arch import ARCHES, MEASURED_ARCH
from flash_attention.call.backward_call import BackwardProblem, Wanted
from flash_attention.call.features import CAUSAL, PLAIN, Features, MaskKind
from flash_attention.choose.rules import choose
from flash_attention.compile import compile_kernel
from flash_attention.errors import UnsupportedError
from flash_attention.families.backward_args import VIEWS
from flash_attention.families.recipe import WORKSPACE_VARIABLE, Recipe, Setting
from flash_attention.families.sm90.backward.queries import Product, query_unit
from flash_attention.families.sm90.wide_backward.config import HopperWideBackwardKernelConfig
from flash_attention.families.sm90.wide_backward.family import SM90_WIDE_BACKWARD
from flash_attention.families.sm90.wide_backward.keys import key_unit
from flash_attention.kernel_configs import DType
from tests.families.problems import view
from tests.families.sm90.config_checks import (
    check_broken_rule,
    check_needs_sm90,
    check_read_back,
)

WIDE = HopperWideBackwardKernelConfig(DType.BF16, 512)
SMS = 132
MIB = 1 << 20


def problem(
    seq: int, *, heads: int = 8, heads_k: int = 8, d: int = 512, d_v: int = 512, **more: Any
) -> BackwardProblem:
    sizes = (1, seq, seq, heads, heads_k, d, d_v)
    return BackwardProblem(*sizes, torch.bfloat16, d**-0.5, **more)


def recipe(asked: BackwardProblem, config: HopperWideBackwardKernelConfig = WIDE) -> Recipe:
    heads = {"q": asked.heads, "o": asked.heads}
    columns = {"v": asked.d_v, "o": asked.d_v}
    views = [
        view(
            name,
            *(asked.batch, asked.seq_q, heads.get(name[-1], asked.heads_k)),
            columns.get(name[-1], asked.d_head),
            dtype=asked.dtype,
        )
        for name in VIEWS
    ]
    return SM90_WIDE_BACKWARD.recipe(config, asked, views, Setting(MEASURED_ARCH, SMS))


def tensors(d: int = 264, d_v: int = 264, rows: int = 20) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, d), (1, d), (1, d_v))
    drawn = (torch.randn(1, rows, heads, width, generator=generator) for heads, width in shapes)
    return [tensor.bfloat16() for tensor in drawn]


# the config


@pytest.mark.parametrize("d_head", [384, 512])
@pytest.mark.parametrize("dtype", list(DType))
def test_a_config_is_read_back_from_its_short_form_and_its_names(dtype: DType, d_head: int) -> None:
    config = HopperWideBackwardKernelConfig(dtype, d_head)
    assert str(config) == f"hopper_wide_backward({dtype.name}, {d_head}): plain"
    check_read_back(config, "causal")


def test_rules_are_named() -> None:
    check_needs_sm90(WIDE, "a config of the backward pass of wide heads")
    check_broken_rule(WIDE, {"d_head": 256}, "d_head", "d_head=256: use one of 384, 512")


def test_the_head_dimension_changes_the_products() -> None:
    names = [
        [step.unit.name for step in recipe(problem(512, d=264, d_v=264), config).steps[2:]]
        for config in (WIDE, replace(WIDE, d_head=384))
    ]
    assert [name.replace("d256x2", "d192x2") for name in names[0]] == names[1]
    assert names[0] != names[1]


# choosing


@pytest.mark.parametrize(
    ("d", "d_v", "d_head"), [(264, 264, 384), (384, 8, 384), (8, 392, 512), (512, 512, 512)]
)
def test_the_smallest_config_that_holds_a_problem_is_chosen(d: int, d_v: int, d_head: int) -> None:
    asked = problem(4096, d=d, d_v=d_v)
    choice = choose(asked, Setting(MEASURED_ARCH, SMS))
    assert choice.config == replace(WIDE, d_head=d_head)
    assert f"d_head {d} with d_v {d_v}" in SM90_WIDE_BACKWARD.why(WIDE, asked, None)


def test_narrower_heads_have_other_kernels() -> None:
    choice = choose(problem(4096, d=256, d_v=256), Setting(MEASURED_ARCH, SMS))
    assert type(choice.config).__name__ == "HopperBackwardKernelConfig"


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_120"])
def test_other_architectures_are_told_which_gpu_has_a_kernel(arch: str) -> None:
    with pytest.raises(UnsupportedError, match=r"on sm_\d+: head dimensions over 256 need sm_90"):
        choose(problem(4096), Setting(ARCHES[arch], SMS))


# recipes


def test_scores_are_stored_before_the_products_that_read_them() -> None:
    made = recipe(problem(1000, heads=4, heads_k=2, causal=True))
    assert [step.unit.name for step in made.steps] == [
        "backward_prepare_bf16_64_0",
        "hopper_wide_backward_bf16_d512_plain_causal",
        "hopper_keys_bf16_d256x2_dk_dv_8_causal",
        "hopper_queries_bf16_d256x2_stored_8_causal",
    ]
    scores, keys, queries = (step.geometry for step in made.steps[1:])
    assert scores.grid == (127, 1, 1)  # of 4 heads with 8 x 4 tiles; 128 shares a factor with 8
    assert keys.grid == (2 * 8 * 2, 2, 1)  # heads of k, tiles of keys, passes; gradients
    assert queries.grid == (4 * 8 * 2, 1, 1)  # heads, tiles of queries, passes
    assert made.tiles == 4 * 8 * 4
    assert made.scratch == {
        "lse_log2": 4 * 4 * 1024,
        "delta": 4 * 4 * 1024,
        "ds": 2 * 2 * 4 * 1024 * 1024,
    }


@pytest.mark.parametrize("seq", [4096, 16384, 131072])
def test_the_workspace_is_bounded(seq: int) -> None:
    made = recipe(problem(seq, causal=True))
    assert made.scratch["ds"] <= 2048 * MIB
    others = sum(size for name, size in made.scratch.items() if name != "ds")
    assert others <= 8 * seq * (512 + 2) * 4  # a float32 for each element of dq


@pytest.mark.parametrize(
    ("wanted", "kernels"),
    [
        (Wanted(dk=False, dv=False), ["hopper_queries"]),
        (Wanted(dq=False), ["hopper_keys_bf16_d256x2_dk_dv"]),
        (Wanted(dq=False, dv=False), ["hopper_keys_bf16_d256x2_dk_8"]),
        (Wanted(dk=False), ["hopper_keys_bf16_d256x2_dv_8", "hopper_queries"]),
    ],
)
def test_what_is_not_wanted_is_not_computed(wanted: Wanted, kernels: list[str]) -> None:
    names = [step.unit.name for step in recipe(problem(512, wanted=wanted)).steps[2:]]
    assert len(names) == len(kernels)
    assert all(map(str.startswith, names, kernels))


@pytest.mark.slow
@pytest.mark.parametrize(
    "features",
    [
        *(PLAIN, CAUSAL, Features(MaskKind.WINDOW, per_batch=True)),
        Features(MaskKind.WINDOW, softcap=True, per_batch=True),
    ],
    ids=lambda features: features.suffix,
)
def test_kernels_spill_nothing_and_serialise_nothing(features: Features) -> None:
    product = Product(DType.BF16, 256, 8, 2)
    for unit in (
        SM90_WIDE_BACKWARD.unit(WIDE, features, MEASURED_ARCH),
        key_unit(product, features, ("dk", "dv")),
        query_unit(product, features, adds=True),
    ):
        resources = compile_kernel(unit.source, arch=unit.target, name=unit.name).resources
        assert resources.notes == (), unit.name
        assert resources.spill_bytes == 0, unit.name


# refusals


def test_a_workspace_without_room_for_some_keys_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE_VARIABLE, "1")
    message = (
        "P and dS of 128 keys and 4096 queries of 4 heads takes 8 MiB, and the workspace has 1"
    )
    with pytest.raises(UnsupportedError, match=message):
        recipe(problem(4096, heads_k=2))


def test_dropout_is_refused() -> None:
    q, k, v = tensors()
    o, lse = attention(q, k, v, return_lse=True)
    message = "HopperWideBackwardKernelConfig kernels have no dropout"
    with pytest.raises(UnsupportedError, match=message):
        backward(WIDE, o, q, k, v, o, lse, dropout_p=0.5, rng_state=torch.zeros(2).long())


def test_a_config_for_narrower_heads_is_refused() -> None:
    q, k, v = tensors(392)
    o, lse = attention(q, k, v, return_lse=True)
    with pytest.raises(UnsupportedError, match="is for d_head up to 384, q and k have d_head 392"):
        backward("hopper_wide_backward(BF16, 384): plain", o, q, k, v, o, lse)


# the rest of the package


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_backward_runs_the_kernels_of_a_config(causal: bool) -> None:
    q, k, v = (tensor.requires_grad_() for tensor in tensors())
    out, lse = attention(q, k, v, causal=causal, return_lse=True)
    do = torch.randn_like(out)
    wanted = torch.autograd.grad(out, (q, k, v), do)
    q, k, v, out, lse = (tensor.detach() for tensor in (q, k, v, out, lse))
    gradients = backward(WIDE, do, q, k, v, out, lse, causal=causal)
    for mine, torchs in zip(gradients[:3], wanted, strict=True):
        assert mine is not None
        torch.testing.assert_close(mine.float(), torchs.float(), rtol=0.02, atol=0.05)


def test_explain_names_the_kernel_and_the_reason() -> None:
    text = str(explain(*tensors(512, 512), gradients=True))
    assert "hopper_wide_backward(BF16, 512): plain" in text
    assert "other kernels have at most 256" in text
