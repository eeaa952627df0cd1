# SPDX-License-Identifier: Apache-2.0
"""A point of a grid of tangents: on a CPU with made-up times, and measured on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention.families.passes import Pass
from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench import tangent_run
from flash_attention_workbench.bench.beside_fa3 import Asked, BesideFa3
from flash_attention_workbench.bench.grid import GRIDS, Measured, Point
from flash_attention_workbench.bench.grid_summary import remark, summary
from flash_attention_workbench.bench.statistics import Timing
from flash_attention_workbench.bench.tangent_run import FORWARD, TORCH, measure_tangents
from flash_attention_workbench.bench.timing import Contender
from tests.families.sm90.tangent.cases import USUAL

POINT = Point(64, True, 96, 1, 4, heads_k=2)
ASKED = Asked(POINT, DType.BF16, Measured.TANGENT, repeats=5, device=torch.device("cpu"))
TIMES = {FORWARD: 2.0, TORCH: 30.0}
SMALL = replace(USUAL, B_c=48)


def made_up_times(
    contenders: Sequence[Contender], *, check: Callable[[str, Any], None], **settings: Any
) -> dict[str, Timing]:
    """In place of `time_in_turn`: everything runs, nothing is timed."""
    for contender in contenders:
        contender.poison()
        check(contender.name, contender.run())
    times = {contender.name: TIMES.get(contender.name, 7.0) for contender in contenders}
    return {name: Timing(ms, ms - 0.1, ms + 0.1, 5) for name, ms in times.items()}


def test_kernels_are_seen_beside_the_forward_pass_and_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tangent_run, "time_in_turn", made_up_times)
    asked = replace(ASKED, heuristic=True)
    found = measure_tangents(asked, [SMALL], (TORCH, "fa3"), BesideFa3())
    assert [row.config for row in found.rows] == [USUAL.short_form(), SMALL.short_form()]
    chosen, other = found.rows
    assert (chosen.selected, other.selected) == (True, False)
    assert (chosen.heuristic_ms, other.heuristic_ms) == (7.0, None)
    assert all(row.ok for row in found.rows), found
    assert (chosen.ms, chosen.forward_ms, chosen.measured) == (7.0, 2.0, "TANGENT")
    assert chosen.peers == ({} if TORCH in found.refused else {TORCH: 30.0})
    assert found.refused["fa3"] == "tangents are compared with sdpa_math"
    assert remark(chosen) == "3.50 times the time of a forward pass"
    assert "time beside the forward pass: geometric mean x3.500 over 1 points" in "\n".join(
        summary(found.rows, [], {})
    )


def test_the_grid_is_that_of_the_question() -> None:
    grid = GRIDS["tangent"]
    assert grid.measured.pass_ is Pass.TANGENT
    assert [(p.d_head, p.causal, p.seq_len) for p in grid.points(masks=(False,))] == [
        *((64, False, 4096), (64, False, 16384), (128, False, 4096), (128, False, 16384)),
    ]


@pytest.mark.gpu("sm_90")
def test_a_point_is_measured() -> None:
    point = Point(128, True, 2048, 2, 16)
    asked = Asked(point, DType.BF16, Measured.TANGENT, 5, torch.device("cuda", 0))
    found = measure_tangents(asked, [], (TORCH,), BesideFa3())
    (row,) = found.rows
    assert row.ok
    assert row.forward_ms is not None
    assert 1.5 * row.forward_ms < row.ms < row.peers[TORCH]
