# SPDX-License-Identifier: Apache-2.0
"""Tables: looked up, merged, and how far problems are apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flash_attention.choose.dense import DenseProblem
from flash_attention.choose.table import Table
from flash_attention.choose.tables import MAX_DISTANCE
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.grid import GRIDS
from flash_attention_workbench.tune.candidates import heuristic
from tests.hopper_configs import square
from tests.workbench.tune.made_up import SM90, dense, entry

OURS = heuristic(dense(), SM90)
OLD, NEW = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"


def table(*entries_of: float, when: str = OLD, ms: float = 1.0, device: str = "A") -> Table:
    made = [entry(dense(int(seq)), OURS, ms=ms, when=when) for seq in entries_of]
    return Table(device).with_entries(made)


def test_of_two_entries_the_newer_wins_and_of_two_as_new_the_faster() -> None:
    old, new = table(512, 1024, when=OLD, ms=0.5), table(1024, 2048, when=NEW, ms=2.0)
    for merged in (old.merge(new), new.merge(old)):
        assert [e.problem.seq_q for e in merged.entries] == [512, 1024, 2048]
        assert merged.exact(dense(1024)) == new.exact(dense(1024))
    fast, slow = table(512, ms=1.0), table(512, ms=1.1)
    assert fast.merge(slow).entries == slow.merge(fast).entries == fast.entries


def test_tables_of_two_devices_are_not_merged() -> None:
    with pytest.raises(UnsupportedError, match="a table of A and one of B cannot be merged"):
        table(512).merge(table(512, device="B"))


def test_exact_is_exact() -> None:
    known = table(512)
    assert known.exact(dense(512)) == known.entries[0]
    for change in ({"batch": 1}, {"causal": True}, {"heads_k": 4}, {"seq_k": 1024}):
        assert known.exact(replace(dense(512), **change)) is None


def test_nearest_is_of_the_same_kind_and_least_apart() -> None:
    known = table(512, 1024, 4096)
    found = known.nearest(dense(900))
    assert found is not None
    assert found[1].problem.seq_q == 1024
    for change in ({"causal": True}, {"d_v": 64}, {"dtype": DType.FP16}):
        assert known.nearest(replace(dense(512), **change)) is None


def test_distance_is_counted_in_doublings() -> None:
    one = dense(1024)
    assert one.distance(one) == 0
    assert one.distance(replace(one, seq_k=2048)) == 1
    assert one.distance(replace(one, batch=2 * one.batch)) == 0.5
    assert one.distance(replace(one, seq_q=2048, seq_k=2048)) == 2.5
    assert one.distance(dense(2048)) == dense(2048).distance(one) == 2  # as many tokens


def test_between_two_lengths_of_a_grid_there_is_always_one_near_enough() -> None:
    grid = [dense(seq) for seq in GRIDS["fa3"].seq_lens]
    for seq in range(512, 16385, 64):
        problem = replace(dense(), seq_q=seq, seq_k=seq, batch=max(round(16384 / seq), 1))
        assert min(map(problem.distance, grid)) <= MAX_DISTANCE


def test_a_dense_problem_is_what_kernels_are_tuned_for() -> None:
    for point in GRIDS["fa3"].points((64, 128), (False, True), (512,)):
        problem = point.problem(DType.BF16)
        found = DenseProblem.of(problem)
        assert found is not None
        assert found.problem == problem
    plain = square(DType.FP16, 128, 512)
    for change in (
        {"softcap": 30.0},
        {"sinks": True},
        {"window": (128, 0)},
        {"seqused_k": True},
        {"total_q": 100},
        {"batch": 0},
    ):
        assert DenseProblem.of(replace(plain, **change)) is None
    assert str(DenseProblem.of(replace(plain, seq_k=640, heads_k=4))) == (
        "FP16 d 128 full, 32 x 512/640 rows x 16/4 heads"
    )
