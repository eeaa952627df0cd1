# SPDX-License-Identifier: Apache-2.0
"""Mistakes planted in kernels of the corpus: each is found, by the kind that is predicted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from flash_attention.errors import LaunchError
from flash_attention.user_kernel import UserKernel
from tests.user_kernel.corpus_kernels import CORPUS
from tests.user_kernel.corpus_launches import launches

BARRIER = "__syncthreads();"


class Planted(NamedTuple):
    """An edit inside one kernel, its launch, and the finding that must be there."""

    file: str
    entry: str
    before: str
    after: str
    kind: str
    turn: int = 0  # which of the places that read like `before`

    @property
    def arch(self) -> str:
        return "sm_90a" if self.file == "hopper" else "sm_80"


PLANTS = [
    Planted("reductions", "tree_sum", BARRIER, "", "race"),
    Planted("reductions", "tree_sum", BARRIER, "", "race", turn=1),
    Planted("reductions", "tree_sum", "i < n ? in[i] : 0.0f", "in[i]", "global-out-of-bounds"),
    Planted(
        "reductions", "tree_sum", "partial[t] = i", "partial[t + 2] = i", "shared-out-of-bounds"
    ),
    Planted("reductions", "tree_sum", BARRIER, "__syncwarp();", "race"),
    Planted("reductions", "shuffle_sum", BARRIER, "", "race"),
    Planted("reductions", "inclusive_scan", BARRIER, "", "race"),
    Planted("reductions", "inclusive_scan", "if (lane == 31)", "if (lane == 30)", "numbers"),
    Planted("reductions", "atomic_sum", "i < n", "i <= n", "global-out-of-bounds"),
    Planted("memory", "transpose", BARRIER, "", "race"),
    Planted("memory", "transpose", "out[y * height + x]", "out[x]", "cta-write-conflict"),
    Planted("memory", "histogram", BARRIER, "", "race"),
    Planted("memory", "histogram", BARRIER, "", "race", turn=1),
    Planted("memory", "histogram", "mine[b] = 0;", ";", "uninitialised-shared"),
    Planted("memory", "stencil", "at < n", "at <= n", "global-out-of-bounds"),
    Planted("memory", "either_pointer", BARRIER, "", "race"),
    Planted("memory", "last_block_sum", "last && threadIdx", "threadIdx", "cta-write-conflict"),
    Planted(
        "memory", "last_block_sum", "if (threadIdx.x == 0) sum = 0;", "", "uninitialised-shared"
    ),
    Planted("matmul", "tiled_matmul", BARRIER, "", "race"),
    Planted("matmul", "tiled_matmul", BARRIER, "", "race", turn=1),
    Planted("matmul", "naive_matmul", "row >= m || ", "", "global-out-of-bounds"),
    Planted("matmul", "naive_matmul", "col] = sum", "col] += sum", "uninitialised-global"),
    Planted("matmul", "softmax", BARRIER, "", "race", turn=2),
    Planted("hopper", "rotate_behind_tokens", "values[round & 1]", "values[0]", "race"),
    Planted("hopper", "rotate_behind_tokens", "u32 done = 0", "u32 done = 1", "race"),
    Planted("hopper", "copies_that_arrive", '"r"(64)', '"r"(65)', "deadlock"),
    Planted("hopper", "copies_that_arrive", BARRIER, "", "race"),
]


def planted_text(plant: Planted) -> str:
    """The file with the edit: at one place of the kernel, or at all where `turn` is 0 and it
    names no barrier."""
    text = (CORPUS / f"{plant.file}.cu").read_text()
    start = text.index(f" {plant.entry}(")
    end = text.find("\n}\n", start)
    kernel = text[start:end]
    assert kernel.count(plant.before) > plant.turn
    pieces = kernel.split(plant.before)
    if plant.before != BARRIER:
        return text[:start] + plant.after.join(pieces) + text[end:]
    first = plant.before.join(pieces[: plant.turn + 1])
    rest = plant.before.join(pieces[plant.turn + 1 :])
    return text[:start] + first + plant.after + rest + text[end:]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda p: f"{p.entry}-{p.kind}")
def test_a_planted_mistake_is_found(plant: Planted) -> None:
    kernel = UserKernel.of_source(planted_text(plant), plant.entry, arch=plant.arch)
    arguments, launch = launches()[plant.entry]
    if plant.kind == "deadlock":
        with pytest.raises(LaunchError, match="1 of 65 arrivals pending"):
            kernel.run(*arguments, **launch)
        return
    result = kernel.run(*arguments, **launch)
    if plant.kind == "numbers":
        assert not np.array_equal(result.arrays[0], np.cumsum(result.arrays[1]))
        return
    assert plant.kind in {finding.kind for finding in result.findings}
    found = next(finding for finding in result.findings if finding.kind == plant.kind)
    assert found.source is not None
    assert "kernel.cu:" in found.source
