# SPDX-License-Identifier: Apache-2.0
"""What is refused, on a CPU; the whole measurement on a GPU."""

from __future__ import annotations

import pytest
import torch

from flash_attention.errors import LaunchError
from flash_attention.ladder import get_ladder
from flash_attention.reference import judge as testing
from flash_attention.tools.bench.comparison import FA2
from flash_attention.tools.bench.ladder_run import GRIDS, Candidate, by_mask, checked, measure


@pytest.mark.parametrize("spoiled", [float("nan"), 3.0])
def test_one_wrong_element_is_refused(spoiled: float) -> None:
    problem = testing.generate_qkv(1, 128, 2, 64, torch.bfloat16)
    judge = testing.Judge(*problem)
    out = testing.attention_16bit(*problem)
    assert checked(judge, "torch", out) == judge.reference_error
    out[0, 77, 1, 13] = spoiled
    with pytest.raises(LaunchError, match=r"rung 3: max error .* its time means nothing"):
        checked(judge, "rung 3", out)


def test_the_seed_grid_is_the_published_one() -> None:
    tokens = [batch * seq_len for batch, seq_len in GRIDS["seed"]]
    assert [seq_len for _, seq_len in GRIDS["seed"]] == [512 << i for i in range(6)]
    assert tokens == [8192, 16384, 32768, 65536, 65536, 65536]


def test_causal_rungs_are_measured_with_the_one_below_under_a_causal_mask() -> None:
    config = get_ladder()[0].config
    candidates = [
        Candidate("base", 1, "", config),
        Candidate("swizzle", 2, "swizzled: False -> True", config),
        Candidate("halves", 3, "half: 0 -> 1", config, causal=True),
        Candidate("thirds", 4, "third: 0 -> 1", config, causal=True),
        Candidate("some other", None, "", config),
    ]
    (plain, unmasked), (masked, causal) = by_mask(candidates, causal=False)
    assert (plain, masked) == (False, True)
    assert [candidate.name for candidate in unmasked] == ["base", "swizzle", "some other"]
    assert [candidate.name for candidate in causal] == ["swizzle", "halves", "thirds"]
    assert [candidate.change for candidate in causal] == ["", "half: 0 -> 1", "third: 0 -> 1"]


def test_with_one_mask_all_are_measured_together() -> None:
    config = get_ladder()[0].config
    base, halves = Candidate("base", 1, "", config), Candidate("halves", 2, "", config, causal=True)
    assert by_mask([base, halves], causal=True) == [(True, [base, halves])]
    assert by_mask([base], causal=False) == [(False, [base])]
    assert by_mask([halves], causal=False) == [(True, [halves])]


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
