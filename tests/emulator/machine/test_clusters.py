# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.clusters import WINDOW, Clusters, map_address, rank_of


def test_warps_of_a_cluster_belong_to_ctas_of_the_grid() -> None:
    clusters = Clusters((4, 2, 1), (2, 2, 1), threads=64)
    assert (clusters.size, clusters.count, clusters.warps_in_cta) == (4, 2, 2)
    ctas = [[int(clusters.cta(cluster, warp)) for warp in range(8)] for cluster in range(2)]
    assert ctas == [[0, 0, 1, 1, 4, 4, 5, 5], [2, 2, 3, 3, 6, 6, 7, 7]]
    assert [clusters.warp(warp) for warp in range(4)] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("grid", "shape", "threads", "message"),
    [
        ((3, 1, 1), (2, 1, 1), 32, "not cut into clusters"),
        ((32, 1, 1), (32, 1, 1), 32, "takes up to 16"),
        ((2, 1, 1), (2, 1, 1), 40, "40 threads a CTA are not emulated"),
    ],
)
def test_clusters_that_cannot_be(
    grid: tuple[int, int, int], shape: tuple[int, int, int], threads: int, message: str
) -> None:
    with pytest.raises(EmulatorError, match=message):
        Clusters(grid, shape, threads)


def test_an_address_names_the_cta_that_it_lies_in() -> None:
    own = np.array([3, 3], np.uint32)
    local = np.array([1024, 2048], np.uint32)
    assert rank_of(local, own).tolist() == [3, 3]
    mapped = map_address(local, np.array([0, 2], np.uint32))
    assert mapped.dtype == local.dtype
    assert rank_of(mapped, own).tolist() == [0, 2]
    assert (mapped % WINDOW == local).all()
    assert (map_address(mapped, own) == map_address(local, own)).all()
