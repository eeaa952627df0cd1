# SPDX-License-Identifier: Apache-2.0
"""What is refused, on a CPU; the whole measurement on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flash_attention import testing
from flash_attention.errors import LaunchError
from flash_attention.families.passes import Pass
from flash_attention.ladder import get_ladder
from flash_attention_workbench.bench.comparison import FA2
from flash_attention_workbench.bench.ladder_run import (
    GRIDS,
    Candidate,
    checked,
    measure,
    nearest_to_limit,
    under_masks,
)
from flash_attention_workbench.commands.ladder.measured import candidates_of


@pytest.mark.parametrize("spoiled", [float("nan"), 3.0])
def test_one_wrong_element_is_refused(spoiled: float) -> None:
    problem = testing.generate_qkv(1, 128, 2, 64, torch.bfloat16)
    judge = testing.Judge(*problem)
    out = testing.attention_16bit(*problem)
    right = judge.check(out)
    assert checked("torch", {"output": right}).error == judge.reference_error
    out[0, 77, 1, 13] = spoiled
    with pytest.raises(LaunchError, match=r"rung 3, dk: max error .* its time means nothing"):
        checked("rung 3", {"dq": right, "dk": judge.check(out)})


def test_the_seed_grid_is_the_published_one() -> None:
    tokens = [batch * seq_len for batch, seq_len in GRIDS["seed"]]
    assert [seq_len for _, seq_len in GRIDS["seed"]] == [512 << i for i in range(6)]
    assert tokens == [8192, 16384, 32768, 65536, 65536, 65536]


def test_of_several_results_the_one_nearest_to_its_limit_counts() -> None:
    problem = testing.generate_qkv(1, 128, 2, 64, torch.bfloat16)
    judge = testing.Judge(*problem)
    near = judge.check(testing.attention_16bit(*problem))
    far = judge.check(testing.attention_16bit(*problem).zero_())
    exact = replace(near, error=0.0)
    assert nearest_to_limit({"dq": exact, "dk": near}) == ("dk", near)
    assert checked("torch", {"dq": near, "dk": exact}) == near
    assert nearest_to_limit({"dq": near, "dv": far}) == ("dv", far)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_measuring_rungs_of_the_backward_pass(causal: bool) -> None:
    ladder = get_ladder(pass_=Pass.BACKWARD)
    rungs = [ladder[0], ladder[9], ladder[10], ladder[-1]]
    candidates = [Candidate(rung.name, rung.number, "", rung.config) for rung in rungs]
    device = torch.device("cuda", torch.cuda.current_device())
    rows = measure(
        candidates,
        (2, 512),
        n_heads=4,
        repeats=3,
        device=device,
        causal=causal,
        pass_=Pass.BACKWARD,
    )
    assert [row.contender for row in rows] == [FA2, *(rung.name for rung in rungs)]
    for row in rows:
        assert row.max_error <= row.allowed_error
        flop = 10 * 2 * 4 * 512 * 512 * 128 // (2 if causal else 1)
        assert row.tflops == pytest.approx(flop / row.median_ms / 1e9)


@pytest.mark.gpu
def test_measuring_two_rungs() -> None:
    rungs = [get_ladder()[0], get_ladder()[-1]]
    candidates = [Candidate(rung.name, rung.number, "", rung.config) for rung in rungs]
    device = torch.device("cuda", torch.cuda.current_device())
    seen: list[str] = []
    rows = measure(
        candidates, (2, 512), n_heads=16, repeats=3, device=device, on_checked=seen.append
    )
    assert seen == [FA2, *(rung.name for rung in rungs)]
    assert [row.contender for row in rows] == seen
    for row in rows:
        assert 0 < row.low_ms <= row.median_ms <= row.high_ms
        assert row.max_error <= row.allowed_error
        flop = 4 * 2 * 16 * 512 * 512 * 128
        assert row.tflops == pytest.approx(flop / row.median_ms / 1e9)


def test_rungs_for_causal_masks_run_under_one_after_the_rung_below() -> None:
    candidates = candidates_of(get_ladder(), ())
    masks = under_masks(candidates, causal=False)
    assert [c.number for c in masks[False]] == list(range(1, 27))
    assert [c.number for c in masks[True]] == [26, 27, 28, 29]
    assert under_masks(candidates[:5], causal=False) == {False: candidates[:5]}
    assert under_masks(candidates, causal=True) == {True: candidates}
    backward = candidates_of(get_ladder(pass_=Pass.BACKWARD), ())
    masks = under_masks(backward, causal=False)
    first = next(c.number for c in backward if c.causal)
    assert first is not None
    assert [c.number for c in masks[True]] == list(range(first - 1, len(backward) + 1))
