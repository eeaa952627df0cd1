# SPDX-License-Identifier: Apache-2.0
"""What is told of elements that change, and of a thread at a line of the source."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptx_emulator import Debug, Empty, UserKernel
from ptx_emulator.errors import UnsupportedError

SOURCE = """\
__device__ int visits;
__global__ void shift(float* out, const float* in) {
  __shared__ float tile[64];
  int t = threadIdx.x;
  tile[t] = 2.0f * in[t];
  __syncthreads();
  out[t] = tile[t] + tile[(t + 1) % 64];
  if (t == 5) visits = 7;
}
"""


def told(schedule: str = "lockstep", **asked: Any) -> list[str]:
    """The lines of a run over 64 threads."""
    lines: list[str] = []
    kernel = UserKernel.of_source(SOURCE)
    x = np.arange(64, dtype=np.float32)
    debug = Debug(**asked, tell=lines.append)
    names = ["out", "in"]
    result = kernel.run(Empty(64), x, grid=1, block=64, names=names, debug=debug, schedule=schedule)
    np.testing.assert_array_equal(result.arrays[0], 2 * x + 2 * np.roll(x, -1))
    assert result.findings == ()
    return lines


@pytest.mark.parametrize("schedule", ["lockstep", "depth-first"])
def test_changes_of_an_argument(schedule: str) -> None:
    first, second = told(schedule, watch=["out[40:42]"])
    assert first.startswith("out[40]: unwritten -> 162, PTX line ")
    assert first.endswith("(kernel.cu:7), by CTA 0 warp 1 lane 8")
    assert second.startswith("out[41]: unwritten -> 166, PTX line ")


def test_changes_of_variables() -> None:
    shared, module = told(watch=["tile[63]", "i32:visits[0]"])
    assert shared.startswith("tile[63]: unwritten -> 126")
    assert shared.endswith("(kernel.cu:5), by CTA 0 warp 1 lane 31")
    assert module.startswith("visits[0]: 0 -> 7")
    assert module.endswith("(kernel.cu:8), by CTA 0 warp 0 lane 5")


def test_a_thread_at_a_line() -> None:
    (stop,) = told(breaks=["kernel.cu:5"], thread=3, watch=["out[3]"])[:1]
    lines = stop.splitlines()
    assert lines[0].startswith("kernel.cu:5, CTA 0 thread 3, PTX line ")
    assert any(line.endswith(" = 3") and line.startswith("  %") for line in lines)  # what is loaded
    assert any(line.endswith(" = 6") and line.startswith("  %") for line in lines)  # and doubled
    assert any("], in + 12 bytes: 3" in line for line in lines)
    assert any("], tile + 12 bytes: 6" in line for line in lines)
    assert lines[-1] == "  out[3:4] = unwritten"


def test_a_line_that_the_thread_does_not_reach() -> None:
    (stop,) = told(breaks=["kernel.cu:8"], thread=40)
    assert "visits" not in stop  # thread 40 compares, and does not store


def test_a_run_of_copies() -> None:
    source = """
__global__ void fetch(int* out, const int* in) {
  __shared__ alignas(16) int tile[4];
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(
                   (unsigned)__cvta_generic_to_shared(tile)), "l"(in) : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  out[0] = tile[2];
}
"""
    lines: list[str] = []
    debug = Debug(watch=["i32:tile[2]"], tell=lines.append)
    data = np.array([4, 5, 6, 7], np.int32)
    UserKernel.of_source(source).run(Empty(1, np.int32), data, grid=1, block=1, debug=debug)
    (line,) = lines
    assert line.startswith("tile[2]: unwritten -> 6, PTX line ")
    assert line.endswith(", by a copy or by a whole warp")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"watch": ["out"]}, "watch is 'out'; write it as out"),
        ({"watch": ["out[5:5]"]}, "which has no element"),
        ({"watch": ["nothing[0]"]}, "no array nothing to watch; the kernel has out, in, visits, t"),
        ({"watch": ["out[60:65]"]}, "out has 64 elements of float32"),
        ({"breaks": ["kernel.cu"]}, "break is 'kernel.cu'; write it as kernel.cu:42"),
        ({"breaks": ["kernel.cu:99"]}, "no instruction comes from kernel.cu:99"),
        ({"thread": 70}, "no thread 70 of CTA 0; the launch has 1 CTAs of 64 threads"),
    ],
)
def test_what_cannot_be_told(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        told(**asked)
