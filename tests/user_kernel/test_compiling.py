# SPDX-License-Identifier: Apache-2.0
"""Headers that kernels name, names of kernels, and what the compiler refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ptx_emulator import Struct, UserKernel
from ptx_emulator.errors import CompileError, UnsupportedError
from ptx_emulator.user_kernel.host_headers import CUDA_HEADERS, HOST_HEADERS
from ptx_emulator.user_kernel.nvcc import find_nvcc

USES = """
#include <cuda_runtime.h>
#include <cstdint>
#include <math.h>
#include <cfloat>
#include <climits>
#include <stdio.h>
namespace ours {
__global__ void limits(float* floats, uint64_t* integers) {
  floats[0] = INFINITY;
  floats[1] = FLT_MAX;
  floats[2] = isnan(NAN) ? 1.0f : 0.0f;
  integers[0] = ULLONG_MAX;
  integers[1] = sizeof(int8_t) + 10 * sizeof(uint16_t) + 100 * sizeof(int64_t);
}
}
"""


def test_headers_of_the_host_say_what_kernels_need() -> None:
    floats, integers = np.zeros(3, np.float32), np.zeros(2, np.uint64)
    kernel = UserKernel.of_source(USES, "limits")
    assert kernel.name == "limits"
    kernel.run(floats, integers, grid=1, block=1)
    np.testing.assert_array_equal(floats, [np.inf, np.finfo(np.float32).max, 1])
    np.testing.assert_array_equal(integers, np.array([2**64 - 1, 821], np.uint64))


@pytest.mark.parametrize("header", [*HOST_HEADERS, *CUDA_HEADERS])
def test_every_header_compiles_alone(header: str) -> None:
    UserKernel.of_source(f"#include <{header}>\n__global__ void k() {{}}", "k")


def test_headers_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "twice.cuh").write_text("__device__ int twice(int x) { return 2 * x; }")
    (tmp_path / "k.cu").write_text(
        '#include "twice.cuh"\n__global__ void k(int* out) { *out = twice(21); }'
    )
    out = np.zeros(1, np.int32)
    UserKernel.of_file(tmp_path / "k.cu").run(out, grid=1, block=1)
    assert out[0] == 42


def test_errors_of_the_compiler_are_shown() -> None:
    with pytest.raises(CompileError, match='"oops" is undefined'):
        UserKernel.of_source("__global__ void k(int* out) { *out = oops; }")


def test_arguments_that_do_not_fit_are_refused() -> None:
    kernel = UserKernel.of_source("__global__ void k(float* out, int n) { out[n] = n; }")
    out = np.zeros(4, np.float32)
    with pytest.raises(UnsupportedError, match=r"1 arguments for 2 parameters"):
        kernel.run(out, grid=1, block=1)
    with pytest.raises(UnsupportedError, match="argument 1 is an array, and the parameter has 4"):
        kernel.run(out, out, grid=1, block=1)
    with pytest.raises(UnsupportedError, match="n has 8 bytes, and its parameter 4"):
        kernel.run(out, np.int64(1), grid=1, block=1, names=["out", "n"])
    with pytest.raises(UnsupportedError, match="not contiguous"):
        kernel.run(np.zeros((4, 4), np.float32)[:, 1], 0, grid=1, block=1)
    with pytest.raises(UnsupportedError, match="table of 4 bytes is no variable of the kernel"):
        kernel.run(out, 0, grid=1, block=1, variables={"table": np.zeros(1, np.float32)})
    kernel.run(out, 3, grid=1, block=1)
    assert out[3] == 3


def test_a_float_of_numpy_is_one_of_python_too() -> None:
    kernel = UserKernel.of_source(
        "__global__ void k(float* out, float x, double y) { *out = x + y; }"
    )
    out = np.zeros(1, np.float32)
    kernel.run(out, 1 / np.sqrt(16), 1 / np.sqrt(4), grid=1, block=1)
    assert out[0] == 0.75


KERNELS = """
struct Params { float* out; float scale; };
namespace ours { struct Size { int n; }; }
__global__ void by_struct(Params p) { p.out[threadIdx.x] *= p.scale; }
static __global__ void hidden(ours::Size size, float* out) { out[threadIdx.x] = size.n; }
namespace ours { __global__ void inner(Size size, float* out) { out[threadIdx.x] = -size.n; } }
"""


def test_kernels_of_structures_are_found_by_their_names() -> None:
    out = np.arange(4, dtype=np.float32)
    UserKernel.of_source(KERNELS, "by_struct").run(Struct(out, 0.5), grid=1, block=4)
    np.testing.assert_array_equal(out, np.arange(4) / 2)
    for name, sign in (("hidden", 1), ("inner", -1)):
        kernel = UserKernel.of_source(KERNELS, name)
        assert kernel.name == name
        kernel.run(Struct(np.int32(7)), out, grid=1, block=4)
        np.testing.assert_array_equal(out, np.full(4, sign * 7))


def test_a_name_that_no_kernel_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnsupportedError, match="the text has by_struct, hidden, inner"):
        UserKernel.of_source(KERNELS, "other")


@pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc")
def test_headers_of_the_library_are_those_of_nvcc() -> None:
    text = (
        "#include <limits>\n__global__ void k(int* out) { *out = std::numeric_limits<int>::max(); }"
    )
    out = np.zeros(1, np.int32)
    UserKernel.of_source(text, "k").run(out, grid=1, block=1)
    assert out[0] == np.iinfo(np.int32).max


def test_a_text_without_an_end_is_a_finding_and_ends() -> None:
    kernel = UserKernel.of_source('__global__ void k(const char* x) { printf("%s", x); }')
    result = kernel.run(np.full(4, ord("a"), np.uint8), grid=1, block=1)
    assert result.printed.startswith("aaaa")
    assert {finding.kind for finding in result.findings} == {"global-out-of-bounds"}
