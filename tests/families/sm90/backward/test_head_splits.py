# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flash_attention.arch import MEASURED_ARCH
from flash_attention.families.sm90.backward.head_splits import head_splits
from flash_attention.families.sm90.backward.heuristic import heuristic
from flash_attention.families.sm90.backward.parts import MIB, all_work, split_work
from tests.families.sm90.backward.test_heuristic import PROBLEM

GQA: dict[str, Any] = {"batch": 1, "heads": 64, "heads_k": 8, "causal": True}


@pytest.mark.parametrize(
    ("change", "splits"),
    [
        ({**GQA, "heads_k": 64, "seq_q": 1024, "seq_k": 1024}, 1),  # nothing to split
        ({**GQA, "seq_q": 16384, "seq_k": 16384}, 1),  # enough tiles
        ({**GQA, "batch": 8, "seq_q": 4096, "seq_k": 4096, "causal": False}, 1),
        ({**GQA, "batch": 8, "seq_q": 4096, "seq_k": 4096}, 4),  # which drift apart
        ({**GQA, "seq_q": 1024, "seq_k": 1024}, 4),  # 64 tiles for 132 multiprocessors
        ({**GQA, "batch": 7, "heads_k": 4, "seq_q": 2048, "seq_k": 2048}, 8),  # tiles of 16 heads
        ({**GQA, "seq_q": 256, "seq_k": 256}, 8),
        ({**GQA, "heads": 48, "batch": 4, "seq_q": 2048, "seq_k": 2048}, 3),  # not 6: more sums
        ({**GQA, "heads": 40, "batch": 5, "seq_q": 2048, "seq_k": 2048}, 1),
        ({**GQA, "heads": 71, "heads_k": 1, "d_head": 64, "d_v": 64, "batch": 2, "seq_q": 4096,
          "seq_k": 4096}, 15),  # heads of a tile drift apart
        ({**GQA, "heads": 71, "heads_k": 1, "seq_q": 2048, "seq_k": 2048}, 71),
        ({**GQA, "heads": 12, "heads_k": 2, "seq_q": 6674, "seq_k": 6674, "batch": 2}, 6),
        ({"heads": 12, "heads_k": 2, "seq_q": 6674, "seq_k": 6674, "total_q": 12640,
          "total_k": 12640, "causal": True}, 3),
    ],
)  # fmt: skip
def test_few_long_tiles_are_split(change: dict[str, Any], splits: int) -> None:
    problem = replace(PROBLEM, **change)
    kernel = heuristic(problem, MEASURED_ARCH)
    assert not isinstance(kernel, str)
    assert head_splits(problem, kernel, all_work(problem), 132, 2048 * MIB) == splits


def test_the_parts_of_a_workspace_need_enough_tiles_each() -> None:
    shape: dict[str, Any] = {
        "batch": 1,
        "heads": 8,
        "heads_k": 1,
        "seq_q": 8192,
        "seq_k": 8192,
        "causal": True,
    }
    problem = replace(PROBLEM, d_head=256, d_v=256, **shape)
    kernel = heuristic(problem, MEASURED_ARCH)
    assert not isinstance(kernel, str)
    whole, parts = (split_work(problem, mib * MIB) for mib in (2048, 256))
    assert head_splits(problem, kernel, whole, 132, whole.workspace_bytes) <= head_splits(
        problem, kernel, parts, 132, whole.workspace_bytes
    )


def test_sums_stay_within_the_workspace() -> None:
    """Of a deterministic pass each split has sums of its own; of others all add to one."""
    problem = replace(PROBLEM, **{**GQA, "seq_q": 1024, "seq_k": 1024}, deterministic=True)
    kernel = heuristic(problem, MEASURED_ARCH)
    assert not isinstance(kernel, str)
    of_a_split = 2 * 4 * 8 * 1024 * 128  # dK and dV in float32, heads of k, keys, columns
    found = [head_splits(problem, kernel, all_work(problem), 132, n * of_a_split) for n in range(5)]
    assert found == [1, 1, 2, 3, 4]
