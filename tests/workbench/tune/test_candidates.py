# SPDX-License-Identifier: Apache-2.0
"""What is tried at a problem: the heuristic's choice, what suits the mask, groups of its size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flash_attention.arch import ARCHES, Arch
from flash_attention.call.backward_call import Wanted
from flash_attention.choose.dense import DenseBackwardProblem, DenseProblem
from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.families.passes import Pass
from flash_attention.families.registry import family_called
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.slots import QueryGradient
from flash_attention.families.sm90.forward.heuristic import group_mib
from flash_attention.kernel_configs import (
    SET_VARIABLE,
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
    TileOrder,
)
from flash_attention.ladder import get_ladder
from flash_attention_workbench.tune.candidates import (
    carried_over,
    check_candidates,
    heuristic,
    neighbours,
    space_of,
    starting_points,
)
from flash_attention_workbench.tune.points import problems_of
from tests.workbench.tune.made_up import SM90, dense, dense_backward


def hopper(config: KernelConfig) -> HopperForwardKernelConfig:
    assert isinstance(config, HopperForwardKernelConfig)
    return config


@pytest.mark.parametrize("problem", problems_of("fa3"), ids=str)
def test_a_search_starts_with_the_heuristics_choice_and_all_about_it(problem: DenseProblem) -> None:
    own = heuristic(problem, SM90)
    start = starting_points(problem, SM90)
    assert start[0] == own
    assert set(neighbours(own, problem)) <= set(start)
    assert len(start) == len(set(start))
    assert 20 <= len(start) <= 60  # all of the grid compiles in a minute or two
    for config in start:
        assert config.broken_rule(SM90) is None
        assert (config.dtype, config.d_head) == (problem.dtype, problem.d_head)


def test_walks_suit_the_mask() -> None:
    causal, full = dense(causal=True), dense()
    orders = {hopper(c).tile_order for c in starting_points(causal, SM90)}
    assert orders == {TileOrder.DYNAMIC}
    of_full = [hopper(c) for c in starting_points(full, SM90)]
    assert {c.tile_order for c in of_full} == set(TileOrder)
    assert {c.narrow_keys for c in of_full} == {0}
    own = hopper(heuristic(causal, SM90))
    assert {hopper(c).group_mib for c in starting_points(causal, SM90)} == {
        own.group_mib,
        *(own.group_mib * n // 4 for n in (2, 3, 6, 8)),
    }


@pytest.mark.parametrize("d_head", [64, 128])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_one_consumer_is_tried_at_short_lengths_two_ctas_side_by_side(
    d_head: int, causal: bool
) -> None:
    for seq in (512, 1024, 2048):
        start = map(hopper, starting_points(dense(seq, causal, d_head), SM90))
        alone = [config for config in start if config.consumers == 1]
        assert bool(alone) == (seq <= 1024)
        assert all(config.side_by_side == 2 and not config.ping_pong for config in alone)


def test_the_grid_of_the_paper_starts_from_so_many_kernels() -> None:
    kernels = {
        (config, problem.causal)
        for problem in problems_of("fa3")
        for config in starting_points(problem, SM90)
    }
    assert 500 <= len(kernels) <= 750  # they are compiled while others are timed


def test_other_architectures_search_the_sm_80_family() -> None:
    start = starting_points(dense(), ARCHES["sm_80"])
    assert len(start) > 2544
    assert set(starting_points(dense(causal=True), ARCHES["sm_80"])) == set(start)
    assert all(isinstance(config, FlashForwardKernelConfig) for config in start)
    near = neighbours(start[0], dense())
    assert start[1 : 1 + len(near)] == near
    assert starting_points(dense(), ARCHES["sm_80"], most=100) == start[:100]


@pytest.mark.parametrize("arch", [ARCHES["sm_80"], SM90], ids=lambda arch: arch.name)
def test_a_family_can_be_named_wherever_its_kernels_run(arch: Arch) -> None:
    start = starting_points(dense(), arch, family_called("sm80"))
    assert start[0] == heuristic(dense(), arch, family_called("sm_80"))
    assert {type(config) for config in start} == {FlashForwardKernelConfig}
    assert {config.d_head for config in start} == {dense().d_head}


def test_a_family_without_a_kernel_for_the_problem_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"the family sm_90 has no kernel for .*need sm_90"):
        heuristic(dense(), ARCHES["sm_80"], family_called("sm90"))
    with pytest.raises(UnsupportedError, match="no family 'sm70'; there are sm80, sm90"):
        family_called("sm70")


def test_what_fell_to_which_rule_is_told() -> None:
    like = heuristic(dense(), SM90, family_called("sm80"))
    space = space_of(like, SM90)
    assert len(space.configs) == 2544
    assert str(space) == (
        "6,144 combinations, 1,536 fall to the rule eager_needs_async, 1,152 fall to the rule"
        " warp_rows, 696 fall to the rule registers, 216 fall to the rule"
        " double_buffer_needs_tiles, 2,544 are left"
    )


def test_the_environment_names_the_set_that_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    family = family_called("sm80")
    first = heuristic(dense(), SM90, family)
    searched = set(starting_points(dense(), SM90, family))
    monkeypatch.setenv(SET_VARIABLE, "progression")
    rungs = [rung.config for rung in get_ladder(first.dtype, first.d_head)[:16]]
    assert set(starting_points(dense(), SM90, family)) == {first, *rungs}
    assert neighbours(first, dense()) == []
    monkeypatch.setenv(SET_VARIABLE, "all")
    assert set(starting_points(dense(), SM90, family)) == searched | set(rungs)
    monkeypatch.setenv(SET_VARIABLE, "none")
    with pytest.raises(KernelConfigError, match="there is no kernel set 'none'"):
        starting_points(dense(), SM90, family)


@pytest.mark.parametrize("problem", problems_of("backward", pass_=Pass.BACKWARD), ids=str)
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_search_of_gradients_starts_with_what_computes_them(
    problem: DenseBackwardProblem, deterministic: bool
) -> None:
    problem = replace(problem, deterministic=deterministic)
    own, start = heuristic(problem, SM90), starting_points(problem, SM90)
    assert start[0] == own
    assert set(neighbours(own, problem)) <= set(start)
    assert 8 <= len(start) == len(set(start)) <= 60
    for config in start:
        assert isinstance(config, HopperBackwardKernelConfig)
        assert config.broken_rule(SM90) is None
        assert (config.dtype, config.d_head) == (problem.dtype, problem.d_head)
        assert not (deterministic and config.adds_dq)
        assert config.query_gradient is not QueryGradient.NONE


def test_some_of_the_gradients_search_the_hopper_family_and_another_if_it_is_named() -> None:
    start = starting_points(dense_backward(wanted=Wanted(dk=False, dv=False)), SM90)
    assert {type(config) for config in start} == {HopperBackwardKernelConfig}
    named = starting_points(dense_backward(), SM90, family_called("sm80", Pass.BACKWARD))
    assert {type(config) for config in named} == {FlashBackwardKernelConfig}


def test_a_set_of_gradients_is_that_of_their_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SET_VARIABLE, "progression")
    problem = dense_backward()
    rungs = [rung.config for rung in get_ladder(DType.BF16, 128, pass_=Pass.BACKWARD)]
    hopper_rungs = {c for c in rungs if isinstance(c, HopperBackwardKernelConfig)}
    assert set(starting_points(problem, SM90)) == {heuristic(problem, SM90), *hopper_rungs}


def test_a_search_without_a_candidate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = dense_backward(wanted=Wanted(dq=False))
    check_candidates(problem, SM90)
    monkeypatch.setenv(SET_VARIABLE, "progression")
    check_candidates(dense_backward(), SM90)
    check_candidates(problem, SM90, family_called("sm80", Pass.BACKWARD))
    check_candidates(dense(d_head=256), SM90)  # there is no ladder, so that nothing was left out
    with pytest.raises(
        UnsupportedError,
        match=r"none of the \d+ kernels of the set progression suits BF16 d 128 full, .* backward"
        r" of dk and dv, so that there is nothing to compare .*; set FLASH_ATTENTION_KERNELS to"
        " autotune, or leave it unset",
    ):
        check_candidates(problem, SM90)


def test_what_is_carried_over_keeps_its_heads_in_a_group() -> None:
    short, long = dense(1024, causal=True), dense(8192, causal=True)
    own = hopper(heuristic(short, SM90))
    half = replace(own, group_mib=own.group_mib // 2)
    there = [hopper(c).group_mib for c in carried_over([own, half], short, long)]
    assert there == [group_mib(long.problem), group_mib(long.problem) // 2]
    full = heuristic(dense(), SM90)
    assert carried_over([full, full], dense(), dense(512)) == [full]
