# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from itertools import islice
from typing import Any

import pytest
import torch

from flash_attention.arch import ARCHES
from flash_attention.call.backward_call import BackwardCall, Wanted
from flash_attention.call.call import Call
from flash_attention.call.features import CAUSAL
from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.families.backward_steps import BackwardStep
from flash_attention.families.cache_update import cache_recipe, cache_tensors
from flash_attention.families.config import KernelConfig
from flash_attention.families.merge import merge_recipe
from flash_attention.families.passes import Pass
from flash_attention.families.registry import unit_of
from flash_attention.families.sm80.forward.space import sample_configs
from flash_attention.families.sm90.forward.combine import CombineConfig, combine_unit
from flash_attention.families.sm90.forward.features import Sm90Features, SplitKind
from flash_attention.families.small_kernels import SmallKernel
from flash_attention.kernel_configs import (
    DType,
    HopperForwardKernelConfig,
    TileOrder,
    get_kernels_to_build,
    parse_kernel_config,
    parse_kernel_name,
)
from flash_attention.ladder import Rung, get_ladder
from flash_attention.launch.plan import Plan
from tests.cache_calls import cache_call
from tests.hopper_configs import sample_hopper_configs
from tests.merge_calls import parts_of


def test_short_forms_round_trip() -> None:
    configs = [
        *get_kernels_to_build(ARCHES["sm_90"])[::10],
        *islice(sample_configs(7, row_strides=(0, 2048)), 500),
        *islice(sample_hopper_configs(7), 500),
    ]
    assert [parse_kernel_config(cfg.short_form()) for cfg in configs] == configs


def test_a_word_before_the_tile_names_the_family() -> None:
    assert parse_kernel_config("hopper(bf16, 128, 2, 96, 1): plain") == HopperForwardKernelConfig(
        DType.BF16, 128, 2, 96, 1
    )
    cfg = parse_kernel_config("hopper (FP16, 64, 3, 128, 2): prefetch_q+dynamic_32+specialised+tma")
    assert cfg == HopperForwardKernelConfig(
        DType.FP16,
        64,
        3,
        128,
        2,
        tma=True,
        specialised=True,
        tile_order=TileOrder.DYNAMIC,
        group_mib=32,
        prefetch_q=True,
    )


def test_groups_of_one_head_are_a_dynamic_order_too() -> None:
    config = HopperForwardKernelConfig(
        *(DType.FP16, 64, 2, 128, 2), tma=True, specialised=True, tile_order=TileOrder.DYNAMIC
    )
    assert config.short_form() == "hopper(FP16, 64, 2, 128, 2): tma+specialised+dynamic_0"
    assert parse_kernel_config(config.short_form()) == config
    assert config.broken_rule() is None


def test_spaces_and_word_order_do_not_matter() -> None:
    a = parse_kernel_config(" (bf16,128, 64,32 ,4) : load_2_2_0_tiles+swizzled+async ")
    b = parse_kernel_config("(BF16, 128, 64, 32, 4): async+swizzled+load_2_2_0_tiles")
    assert a == b


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fast please", "is not a kernel config; the form is"),
        ("(FP16, 128, 64, 4): async", "(FP16, 128, 64, 4) is no tile; it is (dtype, d_head, B_r,"),
        ("(FP16, 128, 64, 64, x): async", "whole numbers after the data type"),
        ("hopper(FP16, 128, 2, 128): tma", "it is (dtype, d_head, consumers, B_c, stages), whole"),
        ("(FP16, 128, 64, 64, 4): async+swizled", "did you mean 'swizzled'"),
        ("(FP16, 128, 64, 64, 4): load_2_2_tiles", "unknown word 'load_2_2_tiles'"),
        ("(FP16, 128, 2, 128, 2): plain", "unknown word 'plain'"),
        ("hoper(FP16, 128, 2, 128, 2): tma", "or 'hopper(FP16, 128, 2, 128, 2): tma"),
        ("hopper(FP16, 128, 2, 128, 2): tma+overlp", "did you mean 'overlap'"),
        ("hopper(FP16, 128, 2, 128, 2): tma+lazy", "did you mean 'lazy_N'"),
        ("hopper(FP16, 128, 2, 128, 2): plain+tma", "'plain' is for a config without other words"),
        ("hopper(FP16, 128, 2, 128, 2): swizzled", "unknown word 'swizzled'"),
    ],
)
def test_what_is_no_short_form_is_refused(text: str, says: str) -> None:
    with pytest.raises(KernelConfigError, match="short_form") as error:
        parse_kernel_config(text)
    assert says in str(error.value)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="fp32"):
        parse_kernel_config("(fp32, 128, 64, 64, 4): async")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "None is not a kernel config"),
        (f"(FP16, {'9' * 5000}, 64, 64, 4): async", r"\(FP16, 9{80,}\.\.\.?\) is no tile"),
        (f"(FP16, 64, 64, 64, 4): load_{'9' * 5000}_2_2_tiles", "unknown word 'load_9{80,}"),
        (f"hopper(FP16, 64, 2, 128, 2): lazy_{'9' * 5000}", "unknown word 'lazy_9{80,}"),
    ],
    ids=["none", "tile", "loads", "lazy"],
)
def test_numbers_without_end_are_refused(text: Any, why: str) -> None:
    with pytest.raises(KernelConfigError, match=why):
        parse_kernel_config(text)


BACKWARD_CONFIGS = (
    "backward(BF16, 64, 64, 128, 8): columns_1+stages_1+load_1+dq_16",
    "hopper_backward(BF16, 64, 128, 128, 1): dq_atomic+ds_1+rounded+serial+one_each",
    "hopper_backward(BF16, 64, 128, 128, 2): dq_workspace+ds_2+rounded+paired+one_each",
)
SAID = (
    "",
    "_causal",
    "_predicated",
    "_window_softcap_per_batch_page_64_sinks_heads_4_decode",
    "_even",
)


@pytest.mark.parametrize("said", SAID)
def test_the_name_of_a_kernel_carries_its_config(said: str) -> None:
    flash = islice(sample_configs(3, row_strides=(0, 1024)), 200)
    for config in (*flash, *islice(sample_hopper_configs(3), 200)):
        entry = f"flash_forward_kernel_{config.kernel_name()}{said}"
        assert entry.isidentifier()
        assert parse_kernel_name(entry) == config
        assert parse_kernel_name(f"void {entry}(fa::ForwardKernelArgs)") == config
        assert parse_kernel_name(config.kernel_name() + said) == config


@pytest.mark.parametrize(
    "rung",
    [rung for pass_ in Pass if pass_.has_ladder for rung in get_ladder(pass_=pass_)],
    ids=lambda rung: rung.config.kernel_name(),
)
def test_the_name_in_the_source_reads_back(rung: Rung) -> None:
    unit = unit_of(rung.config, CAUSAL)
    (entry,) = re.findall(r"^(\w+)\($", unit.source, re.MULTILINE)
    assert parse_kernel_name(entry) == rung.config
    assert parse_kernel_name(unit.name) == rung.config


@pytest.mark.parametrize("config", BACKWARD_CONFIGS)
def test_every_kernel_of_a_backward_pass_has_a_name_that_reads_back(config: str) -> None:
    q = torch.zeros(1, 8, 2, 64, dtype=torch.bfloat16)
    call = Call(q, q, q, torch.zeros_like(q), sinks=torch.zeros(2))
    backward = BackwardCall(q, call, torch.zeros(1, 2, 8), wanted=Wanted(dsinks=True))
    plan = Plan(backward, config)
    found = []
    for step in plan.recipe.steps:
        (entry,) = re.findall(r"^(\w+)\($", step.unit.source, re.MULTILINE)
        read = parse_kernel_name(entry)
        assert read == parse_kernel_name(step.unit.name)
        assert isinstance(read, BackwardStep | KernelConfig)
        found.append(read.kernel if isinstance(read, BackwardStep) else read.short_form())
    after = ["hopper_queries"] if "workspace" in config else ["convert"]
    assert found == ["prepare", config, *after, "sink_gradient"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("splits", [SplitKind.FIXED, SplitKind.EVEN])
@pytest.mark.parametrize("columns", [128, 512])
@pytest.mark.parametrize("dtype", DType)
def test_the_name_of_a_combining_kernel_carries_its_config(
    dtype: DType, columns: int, splits: SplitKind, heads: int, packed: bool
) -> None:
    features = Sm90Features(heads_together=heads, splits=splits)
    for row_in_warp in (False, True):
        unit = combine_unit(
            dtype, features, 64, columns, "sm_90a", packed=packed, row_in_warp=row_in_warp
        )
        (entry,) = re.findall(r"^(flash_combine_kernel_\w+)\($", unit.source, re.MULTILINE)
        config = CombineConfig(dtype, 64, heads, splits, columns, packed, row_in_warp)
        assert parse_kernel_name(entry) == config
        assert parse_kernel_name(unit.name) == config


def test_kernels_without_a_config_have_names_that_read_back() -> None:
    call, parts = cache_call("pages", interleaved=False), parts_of(2)
    updated = cache_recipe(call, cache_tensors(call, call.empty_keys()), "sm_80", whole_chunks=True)
    o, lse = parts.o, parts.lse
    merged = merge_recipe(parts, {**parts._asdict(), "merged_o": o, "merged_lse": lse}, "sm_80")
    found = []
    for recipe in (updated, merged):
        (step,) = recipe.steps
        (entry,) = re.findall(r"^(\w+)\($", step.unit.source, re.MULTILINE)
        assert parse_kernel_name(entry) == parse_kernel_name(step.unit.name)
        found.append(parse_kernel_name(entry))
    assert found == [
        SmallKernel("cache_update", "bf16_vectors_halves"),
        SmallKernel("merge", "bf16_bf16_bf16_16"),
    ]


@pytest.mark.parametrize(
    "name",
    ["", "gemm", "flash_forward_kernel", "fp16_d128_64x32_w4_fast", None, b"gemm", "x" * 9999],
)
def test_the_name_of_another_kernel_is_refused(name: Any) -> None:
    with pytest.raises(KernelConfigError, match="is not the name of a kernel") as caught:
        parse_kernel_name(name)
    assert caught.value.rule == "kernel_name"
    assert len(str(caught.value)) < 300
