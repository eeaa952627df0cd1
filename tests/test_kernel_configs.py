# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from flash_attention.arch import ARCHES, DEFAULT_ARCH, Arch
from flash_attention.choose.heuristic import select_config
from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.families.given import THIRTEEN
from flash_attention.families.passes import Pass
from flash_attention.families.registry import families_of, family_of
from flash_attention.families.sm80.backward.space import search_space as backward_search_space
from flash_attention.families.sm80.forward.space import search_space
from flash_attention.families.sm90.forward.space import hopper_search_space
from flash_attention.kernel_configs import (
    EXAMPLES,
    SET_VARIABLE,
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
    as_kernel_config,
    chosen_configs,
    get_autotuning_kernel_configs,
    get_kernel_configs,
    get_kernel_progression_configs,
    get_kernels_to_build,
    parse_kernel_config,
    should_autotune_config,
    sort_key,
    usual_problems,
)
from flash_attention.ladder import get_ladder
from tests.gate import one_in

SM90 = ARCHES["sm_90"]


def family(
    configs: list[KernelConfig], kind: type[KernelConfig] = HopperForwardKernelConfig
) -> list[KernelConfig]:
    return [cfg for cfg in configs if isinstance(cfg, kind)]


def test_progression_is_the_ladder_for_each_type_and_width() -> None:
    progression = get_kernel_progression_configs()
    assert len(progression) == len(set(progression)) == 16 * 2 * 2
    assert {(c.dtype, c.d_head) for c in progression} == {(t, d) for t in DType for d in (64, 128)}
    ladders = [get_ladder(dtype, d_head) for d_head in (64, 128) for dtype in DType]
    both_families = [rung.config for ladder in ladders for rung in ladder]
    assert get_kernel_progression_configs(SM90) == both_families


@pytest.mark.parametrize("name", one_in(4, sorted(set(ARCHES) - {"sm_90"})))
def test_hopper_kernels_are_for_hopper_only(name: str) -> None:
    assert family(get_kernels_to_build(ARCHES[name])) == []


def test_on_hopper_both_search_spaces_are_searched() -> None:
    configs = get_autotuning_kernel_configs(SM90)
    assert family(configs) == [cfg for cfg in hopper_search_space() if not cfg.broken_rule(SM90)]
    assert family(configs, FlashForwardKernelConfig) == get_autotuning_kernel_configs()


def test_the_autotuning_set_is_the_search_space() -> None:
    configs = get_autotuning_kernel_configs()
    assert configs == [cfg for cfg in search_space() if not cfg.broken_rule(DEFAULT_ARCH)]
    assert len(configs) == len(set(configs)) == 2 * 5616  # either way round


def test_should_autotune_follows_the_rules() -> None:
    cfg = get_autotuning_kernel_configs()[0]
    assert isinstance(cfg, FlashForwardKernelConfig)
    assert should_autotune_config(cfg)
    assert should_autotune_config(cfg.short_form())
    assert not should_autotune_config(cfg.short_form().replace("async+", ""))
    fields = {name: getattr(cfg, name) for name in THIRTEEN}
    assert should_autotune_config(SimpleNamespace(**fields))
    assert not should_autotune_config(SimpleNamespace(**fields | {"async_copy": False}))
    tight = replace(ARCHES["sm_86"], max_smem_per_cta=cfg.smem_bytes() - 1)
    assert not should_autotune_config(cfg, tight)


@pytest.mark.parametrize("arch", [ARCHES["sm_80"], SM90], ids=lambda arch: arch.name)
def test_all_is_both_without_repeats(arch: Arch) -> None:
    everything = get_kernels_to_build(arch)
    assert everything == sorted(set(everything), key=sort_key)
    parts = {*get_kernel_progression_configs(arch), *get_autotuning_kernel_configs(arch)}
    examples = set(map(parse_kernel_config, EXAMPLES))
    assert set(everything) == parts | examples | {*chosen_configs(arch, Pass.FORWARD)}
    assert len(examples) == 4
    assert {cfg.tile() for cfg in examples} == {("FP16", 128, 64, 32, 4)}


@pytest.mark.parametrize("pass_", Pass)
@pytest.mark.parametrize("arch", [ARCHES["sm_80"], SM90], ids=lambda arch: arch.name)
def test_what_attention_chooses_for_usual_problems_is_built(arch: Arch, pass_: Pass) -> None:
    selected = set()
    for problem in usual_problems(pass_):
        with suppress(UnsupportedError):  # sm_80 has no kernel for e4m3 tensors and wide heads
            selected.add(select_config(problem, arch))
    chosen = chosen_configs(arch, pass_)
    assert len(chosen) == len(set(chosen))
    assert set(chosen) == selected
    families = {type(config) for config in chosen}
    of_pass = families_of(pass_) if arch is SM90 else families_of(pass_)[:1]
    older = {family.config_type for family in of_pass if family.name != arch.name}
    assert families == {family.config_type for family in of_pass} - older


def test_a_set_is_chosen_by_name_or_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SET_VARIABLE, raising=False)
    assert get_kernel_configs() == get_kernel_progression_configs()
    monkeypatch.setenv(SET_VARIABLE, "autotune")
    assert get_kernel_configs() == get_autotuning_kernel_configs()
    assert get_kernel_configs("all") == get_kernels_to_build()
    assert get_kernel_configs("progression", SM90) == get_kernel_progression_configs(SM90)
    monkeypatch.setenv(SET_VARIABLE, "autotuna")
    with pytest.raises(KernelConfigError, match="did you mean 'autotune'"):
        get_kernel_configs()


def test_the_sets_of_the_backward_pass() -> None:
    ladders = [
        get_ladder(dtype, d_head, pass_=Pass.BACKWARD) for d_head in (64, 128) for dtype in DType
    ]
    rungs = [rung.config for ladder in ladders for rung in ladder]
    assert get_kernel_progression_configs(SM90, Pass.BACKWARD) == rungs
    space = [cfg for cfg in backward_search_space() if not cfg.broken_rule(DEFAULT_ARCH)]
    assert get_autotuning_kernel_configs(pass_=Pass.BACKWARD) == space
    everything = get_kernel_configs("all", SM90, Pass.BACKWARD)
    assert everything == sorted(set(everything), key=sort_key)
    chosen = chosen_configs(SM90, Pass.BACKWARD)
    assert set(everything) == {*rungs, *get_autotuning_kernel_configs(SM90, Pass.BACKWARD), *chosen}
    assert {family_of(cfg).pass_ for cfg in everything} == {Pass.BACKWARD}


def test_a_rung_is_one_of_the_ladder_of_its_pass() -> None:
    for pass_ in (Pass.FORWARD, Pass.BACKWARD):
        third = as_kernel_config("rung:3", dtype=DType.BF16, d_head=64, pass_=pass_)
        assert third == get_ladder(DType.BF16, 64, pass_=pass_)[2].config
    last = len(get_ladder(pass_=Pass.BACKWARD))
    with pytest.raises(UnsupportedError, match=f"no rung 29; the ladder has rungs 1 to {last}"):
        as_kernel_config("rung:29", pass_=Pass.BACKWARD)
    with pytest.raises(KernelConfigError, match="the tangent pass has no ladder"):
        as_kernel_config("rung:3", pass_=Pass.TANGENT)


def test_the_sets_of_a_pass_without_a_ladder() -> None:
    chosen = get_kernel_progression_configs(SM90, Pass.TANGENT)
    assert [cfg.short_form() for cfg in chosen] == [
        "hopper_tangent(FP16, 64, 2, 96, 2): dynamic_32",
        "hopper_tangent(FP16, 128, 2, 64, 2): dynamic_32",
        "hopper_tangent(BF16, 64, 2, 96, 2): lazy_8+dynamic_32",
        "hopper_tangent(BF16, 128, 2, 64, 2): lazy_8+dynamic_32",
    ]
    assert get_kernel_progression_configs(ARCHES["sm_80"], Pass.TANGENT) == []
    space = get_autotuning_kernel_configs(SM90, Pass.TANGENT)
    assert set(chosen) < set(space)
    assert get_kernel_configs("all", SM90, Pass.TANGENT) == sorted(space, key=sort_key)
