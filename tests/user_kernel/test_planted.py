# SPDX-License-Identifier: Apache-2.0
"""Mistakes planted in kernels of the corpus: each is found, by the kind that is predicted."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from ptx_emulator import UserKernel
from ptx_emulator.errors import LaunchError
from tests.emulator.gate import first_of_each_kind
from tests.user_kernel.corpus_kernels import CORPUS
from tests.user_kernel.corpus_launches import launches
from tests.user_kernel.pattern_cases import cases

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
    def name(self) -> str:
        return self.entry

    @property
    def caught_by(self) -> str:
        return self.kind

    @property
    def arch(self) -> str:
        return "sm_90a" if self.file in ("hopper", "pipelines") else "sm_80"

    @property
    def launch(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments and the launch of the kernel."""
        pattern = cases().get(self.entry)
        return launches()[self.entry] if pattern is None else (pattern.arguments, pattern.launch)


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
    Planted("scans", "blelloch_scan", BARRIER, "", "race", turn=1),
    Planted("scans", "double_buffered_scan", BARRIER, "", "race"),
    Planted("scans", "keep_positive", BARRIER, "", "race"),
    Planted("scans", "bitonic_sort", BARRIER, "", "race"),
    Planted("scans", "odd_even_sort", "left + 1 < n", "left < n", "shared-out-of-bounds"),
    Planted("scans", "radix_sort", BARRIER, "", "race", turn=1),
    Planted("scans", "merge_by_rank", "if (t >= 2 * n) return;", "", "global-out-of-bounds"),
    Planted("rows", "online_softmax", "0xffffffffu", "0x0000ffffu", "membermask"),
    Planted("rows", "rms_norm", BARRIER, "", "race"),
    Planted("rows", "cross_entropy", BARRIER, "", "race"),
    Planted("rows", "argmax", BARRIER, "", "intra-warp-race", turn=1),
    Planted("products", "register_tile_matmul", BARRIER, "", "race", turn=1),
    Planted("products", "two_buffer_matmul", "bs[1 - now][y]", "bs[now][y]", "race"),
    Planted("products", "async_matmul", "wait_group 1", "wait_group 2", "race"),
    Planted("products", "half_matmul", "__syncwarp();", "", "intra-warp-race"),
    Planted("grids", "heat", BARRIER, "", "race"),
    Planted("grids", "relax", "line[1 - from]", "line[from]", "race"),
    Planted("grids", "max_pool", "corner[wide + 1]", "corner[wide + 2]", "global-out-of-bounds"),
    Planted("grids", "attraction", BARRIER, "", "race", turn=1),
    Planted("grids", "warp_histograms", "if (t < 64)", "if (t < 48)", "uninitialised-shared"),
    Planted("pipelines", "pipelined_scale", "empty[stage], CHUNK", "empty[stage], 129", "deadlock"),
    Planted("pipelines", "bulk_stored_squares", "fence.proxy.async", "//", "missing-proxy-fence"),
    Planted(
        "pipelines",
        "bulk_stored_squares",
        "cp.async.bulk.wait_group 0;",
        "",
        "bulk-store-unwaited",
    ),
]


OF_A_KIND = first_of_each_kind(PLANTS, lambda p: f"{p.entry}-{p.kind}-{p.turn}")


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


@pytest.mark.parametrize("plant", OF_A_KIND)
def test_a_planted_mistake_is_found(plant: Planted) -> None:
    kernel = UserKernel.of_source(planted_text(plant), plant.entry, arch=plant.arch)
    arguments, launch = plant.launch
    if plant.kind == "deadlock":
        with pytest.raises(LaunchError, match=r"1 of (65|129) arrivals pending"):
            kernel.run(*arguments, **launch)
        return
    result = kernel.run(*arguments, **launch)
    if plant.kind == "numbers":
        assert not np.array_equal(result.arrays[0], np.cumsum(result.arrays[1]))
        return
    found = [finding for finding in result.findings if finding.kind == plant.kind]
    assert any("kernel.cu:" in (finding.source or "") for finding in found)


def test_mistakes_are_planted_in_many_kernels() -> None:
    assert len({plant.entry for plant in PLANTS}) >= 30
