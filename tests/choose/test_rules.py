# SPDX-License-Identifier: Apache-2.0
"""Which rule chooses the kernel of a call, and how a choice answers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.arch import ARCHES, MEASURED_ARCH, Arch
from flash_attention.call.call import Call
from flash_attention.call.checks import check_call
from flash_attention.call.problem import Problem
from flash_attention.choose.choice import Choice, Rule
from flash_attention.choose.heuristic import select_config
from flash_attention.choose.rules import choose
from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.families.recipe import Recipe, Setting
from flash_attention.families.sm90.forward.decode import choose_splits
from flash_attention.families.sm90.forward.features import Sm90Features, SplitKind
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
    TileOrder,
)

CPU = torch.device("cpu")
SM80, SM90 = ARCHES["sm_80"], ARCHES["sm_90"]
SMS = 132
GIVEN = HopperForwardKernelConfig(DType.BF16, 64, 1, 64, 2, tma=True, specialised=True)
FLASH = FlashForwardKernelConfig(DType.BF16, 64, 64, 32, 4, True, True, True, 0, 2, 2, False, True)


def meta(seq: int, heads: int = 4) -> Tensor:
    return torch.empty(1, seq, heads, 64, dtype=torch.bfloat16, device="meta")


def problem_of(seq_q: int, seq_k: int) -> Problem:
    q, k = meta(seq_q), meta(seq_k)
    return check_call(Call(q, k, k), CPU)[0]


def chosen(
    seq_q: int,
    seq_k: int,
    config: KernelConfig | None = None,
    arch: str = "",
    split_keys: int | None = None,
) -> Choice:
    where = ARCHES[arch] if arch else MEASURED_ARCH if config is None else config.default_arch
    problem, setting = problem_of(seq_q, seq_k), Setting(where, SMS)
    return choose(problem, setting, config=config, split_keys=split_keys)


def described_call(
    described: str, batch: int, seq_q: int, seq_k: int, heads_k: int, **fields: Any
) -> Call:
    """A call whose keys are found in one of several ways."""

    def numbers(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device="meta")

    q, k = meta(seq_q).expand(batch, -1, -1, -1), meta(seq_k, heads_k).expand(batch, -1, -1, -1)
    if described.startswith("cu_seqlens"):
        k = k.flatten(0, 1)
        fields |= {"cu_seqlens_k": numbers(batch + 1), "max_seqlen_k": seq_k}
    if described == "cu_seqlens_q":
        q = q.flatten(0, 1)
        fields |= {"cu_seqlens_q": numbers(batch + 1), "max_seqlen_q": seq_q}
    if described.startswith(("seqused_k", "pages")):
        fields["seqused_k"] = numbers(batch)
    if described.startswith("pages"):
        page = int(described.split()[-1])
        fields["block_table"] = numbers(batch, seq_k // page)
        k = meta(page, heads_k).expand(batch * seq_k // page, -1, -1, -1)
    return Call(q.contiguous(), k.contiguous(), k.contiguous(), **fields)


def recipe(config: KernelConfig, seq_q: int, seq_k: int, **fields: Any) -> Recipe:
    q, k = meta(seq_q), meta(seq_k)
    call = Call(q, k, k, **fields)
    problem, views = check_call(call, CPU)
    setting = Setting(config.default_arch, SMS)
    made = choose(problem, setting, config=config, split_keys=call.split_keys)
    return made.recipe(problem, views)


def test_many_queries_have_the_heuristic_and_few_their_own_rule() -> None:
    short = choose_splits(problem_of(1, 4096), SM90, SMS)
    assert not isinstance(short, str)
    assert chosen(1, 4096) == Choice(short[0], Setting(SM90, SMS, split=short[1]), Rule.DECODE)
    config = select_config(problem_of(256, 256), SM80)
    assert isinstance(config, FlashForwardKernelConfig)
    assert chosen(256, 256, arch="sm_80") == Choice(config, Setting(SM80, SMS), Rule.HEURISTIC)
    hopper = select_config(problem_of(256, 256), SM90)
    assert chosen(256, 256) == Choice(hopper, Setting(SM90, SMS), Rule.HEURISTIC)


def test_splits_are_as_long_as_the_caller_says() -> None:
    asked = choose_splits(problem_of(1, 4096), SM90, SMS, 1024)
    assert not isinstance(asked, str)
    assert asked[1].kind is SplitKind.FIXED
    decided = chosen(1, 4096, split_keys=1024)
    assert decided == Choice(asked[0], Setting(SM90, SMS, split=asked[1]), Rule.DECODE)


def test_a_given_config_stays_and_is_cut_only_if_asked() -> None:
    whole = chosen(1, 4096, GIVEN)
    assert whole == Choice(GIVEN, Setting(SM90, SMS), Rule.GIVEN)
    cut = chosen(1, 4096, GIVEN, split_keys=1024)
    splits = KvSplits.of_keys(problem_of(1, 4096), GIVEN.B_c, 1024)
    assert cut.setting.split == replace(splits, one_launch=True)
    assert recipe(GIVEN, 1, 4096, split_keys=1024).features == Sm90Features(
        decode=True, splits=SplitKind.FIXED, one_launch=True
    )
    assert recipe(GIVEN, 1, 4096).features == Sm90Features()
    with pytest.raises(KernelConfigError, match="needs sm_90"):
        chosen(1, 4096, GIVEN, arch="sm_80")


@pytest.mark.parametrize("arch", [SM80, SM90], ids=lambda arch: arch.name)
@pytest.mark.parametrize(
    "described", ["dense", "seqused_k", "cu_seqlens_k", "cu_seqlens_q", "pages of 64", "pages of 1"]
)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads_k", [4, 1])
def test_a_chosen_config_can_be_given(
    described: str, causal: bool, heads_k: int, arch: Arch
) -> None:
    for batch, seq_q, seq_k in itertools.product((1, 4, 64), (1, 17, 64, 300), (64, 640, 8192)):
        call = described_call(described, batch, seq_q, seq_k, heads_k, causal=causal)
        problem, views = check_call(call, CPU)
        setting = Setting(arch, SMS)
        first = choose(problem, setting)
        given = choose(problem, setting, config=first.config)
        made = given.recipe(problem, views)
        assert (given.config, given.rule) == (first.config, Rule.GIVEN)
        assert made.tiles == first.recipe(problem, views).tiles or described == "dense"


def test_a_config_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="FlashForwardKernelConfig kernels visit all keys"):
        chosen(1, 4096, FLASH, split_keys=1024)
    assert chosen(1, 4096, FLASH) == Choice(FLASH, Setting(SM80, SMS), Rule.GIVEN)
    assert chosen(1, 4096, FLASH, arch="sm_90").setting.arch is SM90


def test_what_does_not_fit_is_refused_when_a_recipe_is_asked_for() -> None:
    used = torch.zeros(1, dtype=torch.int32, device="meta")
    in_turn = replace(GIVEN, tile_order=TileOrder.PERSISTENT)
    with pytest.raises(UnsupportedError, match=r"TileOrder.PERSISTENT: pass one with TileOrder.D"):
        recipe(in_turn, 100, 4096, seqused_k=used)
    half = HopperForwardKernelConfig(DType.FP16, 64, 1, 64, 1, tma=True)
    with pytest.raises(UnsupportedError, match=r"config is for torch.float16"):
        recipe(half, 100, 4096)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tile_order": TileOrder.PERSISTENT}, "tile_order"),
        ({"tile_order": TileOrder.DYNAMIC}, "tile_order"),
        ({"own_output": True}, "own_output"),
    ],
    ids=str,
)
def test_a_config_is_cut_only_if_no_field_is_idle(change: dict[str, Any], field: str) -> None:
    config = replace(GIVEN, **change)
    with pytest.raises(UnsupportedError, match=f"{field} of the config would change nothing"):
        recipe(config, 1, 4096, split_keys=1024)
    assert recipe(config, 1, 4096).num_splits == 0


def test_rules_are_named_in_words() -> None:
    assert [rule.value for rule in Rule] == [
        "given by the caller",
        "batch invariance",
        "decode",
        "table",
        "heuristic",
    ]
