# SPDX-License-Identifier: Apache-2.0
"""Clusters: results against NumPy in every order, and mistakes that are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptx_emulator import SCHEDULES, Tensor, UserKernel
from ptx_emulator.errors import LaunchError
from tests.user_kernel.corpus_kernels import CORPUS, clean, corpus_kernel, floats, integers
from tests.user_kernel.test_on_gpu import launched

FILE, ARCH = "clusters.cu", "sm_90a"


def launch(entry: str) -> tuple[list[Any], dict[str, Any], np.ndarray[Any, Any]]:
    """Arguments, grid and block of a kernel, and what it gives."""
    x, numbers = floats(4, 64), integers(2, 4, 4, 64)
    match entry:
        case "cluster_sum":
            blocks = numbers.reshape(8, 4, 64)
            sums = blocks.sum(axis=2).reshape(4, 2, 2, 2).sum(axis=(1, 3))
            return [np.zeros(8, np.int32), numbers], dict(grid=(4, 8), block=64), sums.reshape(-1)
        case "rotate_rows":
            return [np.zeros_like(x), x], dict(grid=4, block=64), np.roll(x, -1, axis=0)
        case "cluster_histogram":
            given = integers(2, 100, largest=64)
            counts = np.bincount(given.ravel(), minlength=64)
            return [np.zeros(64, np.int32), given, 100], dict(grid=2, block=64), counts
        case "pass_rows":
            passed = np.roll(x.reshape(2, 2, 64), 1, axis=1).reshape(4, 64) + 3
            return [np.zeros_like(x), x, 3], dict(grid=4, block=64), passed
        case "multicast_rows":
            row = floats(2, 256)
            both = np.repeat(row, 2, axis=0) * np.array([[1], [2], [1], [2]], np.float32)
            return [np.zeros((4, 256), np.float32), row], dict(grid=4, block=64), both
        case "send_rows":
            swapped = x.reshape(2, 2, 64)[:, ::-1].reshape(4, 64)
            return [np.zeros_like(x), x], dict(grid=4, block=64), swapped
        case _:
            return [np.zeros_like(x[0]), x[0]], dict(grid=1, block=64), x[0][::-1]


ENTRIES = (
    *("cluster_sum", "rotate_rows", "cluster_histogram", "pass_rows", "multicast_rows"),
    *("send_rows", "held_by_copies"),
)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_cluster_computes_what_numpy_does(entry: str, schedule: str) -> None:
    arguments, shape, expected = launch(entry)
    clean(corpus_kernel(FILE, entry, ARCH), *arguments, **shape, schedule=schedule)
    assert np.allclose(arguments[0].reshape(expected.shape), expected)


@pytest.mark.gpu("sm_90")
@pytest.mark.parametrize("entry", ENTRIES)
def test_the_gpu_stores_the_same(entry: str) -> None:
    arguments, shape, expected = launch(entry)
    kernel = corpus_kernel(FILE, entry, ARCH)
    got = launched(kernel, FILE, tuple(arguments), shape)[0]
    assert np.allclose(got.reshape(expected.shape), expected)


TENSOR_MULTICAST = """
extern "C" __global__ void __cluster_dims__(2, 1, 1)
tiles(float* out, const __grid_constant__ Map map) {
  __shared__ u64 full;
  __shared__ alignas(128) float tile[2][8 * 16];
  if (threadIdx.x == 0) {
    init_barrier(&full, 1);
    expect_bytes(&full, sizeof(tile));
  }
  sync_cluster();
  if (threadIdx.x == 0)
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(address_of(tile[rank()])),
        "l"(&map), "r"(16 * (int)rank()), "r"(0), "r"(address_of(&full)),
        "h"((unsigned short)3)
        : "memory");
  wait_barrier(&full, 0);
  for (int i = threadIdx.x; i < 256; i += blockDim.x)
    out[blockIdx.x * 256 + i] = tile[i / 128][i % 128];
  sync_cluster();
}
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_cta_loads_half_of_the_boxes_for_both(schedule: str) -> None:
    helpers = (CORPUS / FILE).read_text().split("// Every CTA of a cluster sums")[0]
    source = helpers + "struct alignas(64) Map { char bytes[128]; };" + TENSOR_MULTICAST
    kernel = UserKernel.of_source(source, "tiles", arch=ARCH)
    x, out = floats(8, 32), np.zeros((2, 2, 8, 16), np.float32)
    clean(kernel, out, Tensor(x, box=(8, 16)), grid=2, block=64, schedule=schedule)
    assert (out == np.stack((x[:, :16], x[:, 16:]))).all()


def planted(entry: str, before: str, after: str, turn: int = 0) -> set[str]:
    """The findings of a kernel with an edit at one of the places that read like `before`."""
    text = (CORPUS / FILE).read_text()
    start = text.index(f" {entry}(")
    end = text.index("\n}\n", start)
    pieces = text[start:end].split(before)
    assert len(pieces) > turn + 1
    edited = before.join(pieces[: turn + 1]) + after + before.join(pieces[turn + 1 :])
    kernel = UserKernel.of_source(text[:start] + edited + text[end:], entry, arch=ARCH)
    arguments, shape, _ = launch(entry)
    return {finding.kind for finding in kernel.run(*arguments, **shape).findings}


SYNC = "sync_cluster();"


def test_a_cluster_does_not_wait() -> None:
    assert "race" in planted("cluster_sum", SYNC, "__syncthreads();")
    assert "race" in planted("rotate_rows", "__cluster_barrier_arrive();", ARRIVE_RELAXED)
    assert "race" in planted("cluster_histogram", SYNC, "__syncthreads();")
    assert "race" in planted("cluster_histogram", SYNC, "__syncthreads();", turn=1)
    assert "race" in planted("pass_rows", SYNC, "__syncthreads();")
    assert "race" in planted("pass_rows", "__syncthreads();", "")


ARRIVE_RELAXED = 'asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");'


@pytest.mark.parametrize("entry", ["cluster_sum", "rotate_rows"])
def test_a_cta_ends_while_another_reads_its_memory(entry: str) -> None:
    if entry == "cluster_sum":
        assert planted(entry, SYNC, "", turn=1) == {"cluster-exit"}
        return
    text = "__cluster_barrier_arrive();\n  __cluster_barrier_wait();"
    assert planted(entry, text, "", turn=1) == {"cluster-exit"}


def test_a_rank_that_the_cluster_does_not_have() -> None:
    kinds = planted("rotate_rows", "(rank() + 1) % ranks()", "rank() + 1")
    assert "shared-out-of-bounds" in kinds


def test_a_multicast_to_one_cta_leaves_the_other_waiting() -> None:
    with pytest.raises(LaunchError, match="1024 transaction bytes expected, 0 in flight"):
        planted("multicast_rows", '"h"((unsigned short)3)', '"h"((unsigned short)1)')
    kinds = planted("multicast_rows", '"h"((unsigned short)3)', '"h"((unsigned short)7)')
    assert kinds == {"tma-coordinates"}


def test_a_row_is_sent_without_a_proxy_fence() -> None:
    fence = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
    assert planted("send_rows", fence, "") == {"missing-proxy-fence"}


def test_threads_that_never_arrive_at_the_barrier_of_the_cluster() -> None:
    with pytest.raises(LaunchError, match="barrier of cluster 0: 64 of 128 threads have arrived"):
        planted("pass_rows", SYNC, f"if (rank() == 0) {SYNC} else wait_barrier(full, 0);", turn=1)


def test_special_registers_number_the_ctas_of_a_cluster() -> None:
    names = ["ctaid.x", "ctaid.y", "cluster_ctaid.x", "cluster_ctaid.y", "clusterid.x"]
    names += ["clusterid.y", "cluster_ctarank", "cluster_nctarank", "nclusterid.x", "warpid"]
    reads = "\n".join(
        f'asm volatile("mov.u32 %0, %%{name};" : "=r"(x)); out[{i} * n + t] = x;'
        for i, name in enumerate(names)
    )
    source = f"""extern "C" __global__ void __cluster_dims__(2, 2, 1) where(unsigned* out, int n) {{
    unsigned x, t = (blockIdx.y * gridDim.x + blockIdx.x) * 64 + threadIdx.x;
    {reads} }}"""
    out = np.zeros((len(names), 8 * 64), np.uint32)
    clean(UserKernel.of_source(source, arch=ARCH), out, 8 * 64, grid=(4, 2), block=64)
    x, y = (np.repeat(axis.T.ravel(), 64) for axis in np.mgrid[:4, :2])
    warp = np.tile(np.repeat([0, 1], 32), 8)
    expected = [x, y, x % 2, y % 2, x // 2, y // 2, x % 2 + 2 * (y % 2), 0 * x + 4, 0 * x + 2, warp]
    assert out.tolist() == [values.tolist() for values in expected]


def test_a_launch_may_say_the_size_of_its_clusters() -> None:
    text = (CORPUS / FILE).read_text().replace("__cluster_dims__(4, 1, 1) ", "")
    x, out = floats(4, 64), np.zeros((4, 64), np.float32)
    kernel = UserKernel.of_source(text, "rotate_rows", arch=ARCH)
    clean(kernel, out, x, grid=4, block=64, cluster=2)
    assert (out == x[[1, 0, 3, 2]]).all()


def test_a_grid_that_is_not_cut_into_clusters_is_refused() -> None:
    arguments, _, _ = launch("rotate_rows")
    kernel = corpus_kernel(FILE, "rotate_rows", ARCH)
    with pytest.raises(LaunchError, match=r"not cut into clusters \(4, 1, 1\)"):
        kernel.run(*arguments, grid=6, block=64)
