# SPDX-License-Identifier: Apache-2.0
"""The kernels around the main one, in the emulator, against their formulas."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from flash_attention.call.backward_call import BackwardProblem, Wanted
from flash_attention.families.backward_args import STAT_BLOCK, backward_args
from flash_attention.families.backward_steps import (
    Sums,
    prepare_step,
    sink_steps,
    stat_scratch,
    sums_steps,
)
from flash_attention.families.recipe import Step
from flash_attention.launch.emulation import compiled_unit
from ptx_emulator import GlobalMemory, load_program, run
from tests.families.problems import backward_views_of

TARGET = "sm_80"


class Rig:
    """A problem's arguments in the emulator's memory."""

    def __init__(self, problem: BackwardProblem, **scratch: Any) -> None:
        self.problem = problem
        self.memory = GlobalMemory(1 << 24)
        self.args = backward_args(problem, backward_views_of(problem))
        for name, size in stat_scratch(problem, **scratch).items():
            setattr(self.args, name, self.memory.alloc(nbytes=size, name=name))

    def give(self, name: str, values: torch.Tensor) -> torch.Tensor:
        words = values.view(torch.int16) if values.itemsize == 2 else values
        setattr(self.args, name, self.memory.alloc(words.numpy(), name=name))
        return values

    def run(self, step: Step) -> None:
        result = run(
            load_program(compiled_unit(step.unit).ptx),
            self.memory,
            grid=step.geometry.grid,
            block=step.geometry.block,
            args=[self.args],
        )
        assert not result.findings

    def rows(self, name: str) -> torch.Tensor:
        """lse_log2 or delta, (heads, stat_rows)."""
        shape = (self.problem.heads, self.args.stat_rows)
        return torch.from_numpy(self.memory.read(getattr(self.args, name), np.float32, shape))

    def bits(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        words = torch.from_numpy(self.memory.read(getattr(self.args, name), np.int16, shape))
        return words.view(self.problem.dtype)


def problem(**fields: Any) -> BackwardProblem:
    given: dict[str, Any] = {
        **{"batch": 2, "seq_q": 150, "seq_k": 150, "heads": 2, "heads_k": 1, "d_head": 64},
        **{"d_v": 40, "dtype": torch.bfloat16, "softmax_scale": 0.125},
    }
    return BackwardProblem(**given | fields)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_are_summed_and_padded(dtype: torch.dtype) -> None:
    asked = problem(dtype=dtype)
    rig = Rig(asked, sum_columns=32)
    o, do = (rig.give(n, torch.randn(2, 150, 2, 40).to(dtype)) for n in ("o", "d_o"))
    lse = torch.randn(2, 2, 150)
    lse[1, 0, 7] = -math.inf
    rig.give("lse", lse)
    dlse = rig.give("dlse", torch.randn(2, 2, 150))
    rig.run(prepare_step(asked, TARGET, sum_columns=32))
    expected = (o.double() * do.double()).sum(-1).transpose(1, 2) - dlse
    expected[1, 0, 7] = 0
    logs = lse * math.log2(math.e)
    logs[1, 0, 7] = math.inf
    for batch in range(2):
        first = batch * 256
        found = rig.rows("delta")[:, first : first + 256]
        torch.testing.assert_close(found[:, :150].double(), expected[batch], atol=1e-5, rtol=1e-5)
        assert not found[:, 150:].any()
        found = rig.rows("lse_log2")[:, first : first + 256]
        torch.testing.assert_close(found[:, :150], logs[batch])
        assert (found[:, 150:] == math.inf).all()
    sums = rig.memory.read(rig.args.dq_sum, np.float32, (2 * rig.args.stat_rows * 32,))
    assert not sums.any()


def test_turns_start_at_zero() -> None:
    asked = problem()
    rig = Rig(asked, orders_dq=True)
    for name in ("o", "d_o"):
        rig.give(name, torch.randn(2, 150, 2, 40).to(torch.bfloat16))
    rig.give("lse", torch.randn(2, 2, 150))
    rig.run(prepare_step(asked, TARGET, orders_dq=True))
    assert not rig.memory.read(
        rig.args.dq_semaphore, np.int32, (2 * rig.args.stat_rows // 64,)
    ).any()


def test_dq_of_a_sequence_without_keys_is_cleared() -> None:
    asked = problem(seq_k=30, seqused_k=True)
    rig = Rig(asked)
    rig.give("seqused_k", torch.tensor([0, 30]).int())
    for name in ("o", "d_o"):
        rig.give(name, torch.randn(2, 150, 2, 40).to(torch.bfloat16))
    rig.give("lse", torch.randn(2, 2, 150))
    shapes = {"dq": (2, 150, 2, 64), "dk": (2, 30, 1, 64), "dv": (2, 30, 1, 40)}
    for name, shape in shapes.items():
        rig.give(name, torch.ones(shape, dtype=torch.bfloat16))
    rig.run(prepare_step(asked, TARGET))
    for name, shape in shapes.items():
        first, second = rig.bits(name, shape)
        assert not first.any()
        assert second.all()


def test_gradients_outside_of_sequences_are_cleared_and_others_are_not() -> None:
    starts_q, starts_k = torch.tensor([3, 60, 100]), torch.tensor([5, 105, 125])
    used = torch.tensor([90, 20])
    asked = problem(seq_q=57, seq_k=100, total_q=110, total_k=140, seqused_k=True)
    rig = Rig(asked)
    for name, values in (("cu_seqlens_q", starts_q), ("cu_seqlens_k", starts_k)):
        rig.give(name, values.int())
    rig.give("seqused_k", used.int())
    for name, shape in (("o", (110, 2, 40)), ("d_o", (110, 2, 40))):
        rig.give(name, torch.randn(shape).to(torch.bfloat16))
    lse = rig.give("lse", torch.randn(2, 110))
    ones = {"dq": (110, 2, 64), "dk": (140, 1, 64), "dv": (140, 1, 40)}
    for name, shape in ones.items():
        rig.give(name, torch.ones(shape, dtype=torch.bfloat16))
    rig.run(prepare_step(asked, TARGET))
    kept_k = {*range(5, 95), *range(105, 125)}
    for name, kept in (("dq", set(range(3, 100))), ("dk", kept_k), ("dv", kept_k)):
        rows = rig.bits(name, ones[name]).flatten(1).float()
        assert {i for i, row in enumerate(rows) if row.all()} == kept
        assert {i for i, row in enumerate(rows) if not row.any()} == set(range(len(rows))) - kept
    for batch, (start, end) in enumerate(pairwise(starts_q.tolist())):
        first = start // STAT_BLOCK * STAT_BLOCK + batch * STAT_BLOCK
        found = rig.rows("lse_log2")[:, first : first + end - start]
        torch.testing.assert_close(found, lse[:, start:end] * math.log2(math.e))


@pytest.mark.parametrize("order", ["ByLane", "ByValue"])
def test_sums_become_rows(order: str) -> None:
    asked = problem(d_head=56)
    rig = Rig(asked, sum_columns=64)
    rows = torch.randn(2, rig.args.stat_rows, 64)
    rig.give("dq_sum", stored(rows, order))
    rig.give("dq", torch.zeros(2, 150, 2, 56, dtype=torch.bfloat16))
    rig.run(*sums_steps(asked, TARGET, Sums(64, order)))
    found = rig.bits("dq", (2, 150, 2, 56))
    dense = rows.unflatten(1, (2, 256))[:, :, :150, :56]  # heads, batch, rows, columns
    expected = (dense * 0.125).to(torch.bfloat16).permute(1, 2, 0, 3)
    assert torch.equal(found, expected)


def stored(rows: torch.Tensor, order: str) -> torch.Tensor:
    """Rows (heads, rows, columns) in the order of accumulators, by their lane map."""
    fragments: torch.Tensor = rows.unflatten(1, (-1, 2, 8)).unflatten(3 + 1, (-1, 4, 2))
    # heads, tile, half, octet, column, quad, pair -> lane = octet, quad; value = half, pair
    if order == "ByValue":
        by_value: torch.Tensor = fragments.permute(0, 1, 4, 2, 6, 3, 5).contiguous()
        return by_value
    # heads, tile, column, octet, quad, half, pair
    by_lane: torch.Tensor = fragments.permute(0, 1, 4, 3, 5, 2, 6)
    stored_lanes: torch.Tensor = by_lane.unflatten(1, (-1, 4)).transpose(2, 3).contiguous()
    return stored_lanes


def test_the_gradient_of_sinks_is_a_sum_over_rows() -> None:
    asked = problem(sinks=True, wanted=Wanted(dsinks=True))
    rig = Rig(asked)
    o, do = (rig.give(n, torch.randn(2, 150, 2, 40).bfloat16()) for n in ("o", "d_o"))
    sinks = rig.give("sinks", torch.randn(2))
    lse = rig.give("lse", sinks[:, None] + torch.rand(2, 2, 150))  # a sink is a part of it
    rig.args.dsinks = rig.memory.alloc(nbytes=8, name="dsinks")
    rig.run(prepare_step(asked, TARGET))
    (step,) = sink_steps(asked, TARGET)
    rig.run(step)
    delta = (o.double() * do.double()).sum(-1).transpose(1, 2)
    expected = -(torch.exp(sinks[:, None] - lse) * delta).sum((0, 2))
    found = torch.from_numpy(rig.memory.read(rig.args.dsinks, np.float32, (2,)))
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("target", "early"), [("sm_80", 0), ("sm_89", 0), ("sm_90a", 1), ("sm_120", 1)]
)
def test_the_next_kernel_starts_early_where_gpus_can(target: str, early: int) -> None:
    assert f"kStartsNext = {early};" in prepare_step(problem(), target).unit.source
