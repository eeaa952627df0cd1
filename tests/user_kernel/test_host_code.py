# SPDX-License-Identifier: Apache-2.0
"""Files with host code, which nvcc compiles, or NVRTC without that code; templates by name."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from ptx_emulator import UserKernel
from ptx_emulator.errors import CompileError, UnsupportedError
from ptx_emulator.machine.arithmetic.numerics import bf16_to_f32
from ptx_emulator.user_kernel import compiling, nvcc
from ptx_emulator.user_kernel.compiling import toolkit_headers
from ptx_emulator.user_kernel.host_code import without_host_code
from ptx_emulator.user_kernel.nvcc import find_nvcc
from ptx_emulator.user_kernel.nvrtc import RefusedSourceError

PROGRAM = """\
#include <iostream>
#include <vector>
#include <algorithm>
#include <cuda_runtime.h>
#include "helper.h"
#include "not/there.h"
#define CHECK(x) do { cudaError_t e = (x); if (e) { std::cerr << "}"; exit(1); } } while (0)
#define ON_BOTH __host__ __device__
using namespace std;
namespace files = std::filesystem;
namespace ours {
struct Timer {
  cudaEvent_t begin, end;
  Timer() { cudaEventCreate(&begin); }
  float stop() { float ms; cudaEventElapsedTime(&ms, begin, end); return ms; }
};
class Watch {
  struct timeval begin;
  inline float lasted();
};
struct alignas(8) Pair {
  float a, b;
  ON_BOTH float sum() const { return a + b; }
  void print() const { std::cout << a << '"' << std::endl; }
};
static const int kTimes = 3;
constexpr int twice(int x) { return 2 * x; }
ON_BOTH inline float half_of(float x) { return x / kTimes; }
template <class T, int N>
__global__ void scale(T* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = x[i] * N + twice(n) + helped(i);
}
__global__ void __launch_bounds__(64) sums(float* out, const Pair* in) {
  out[threadIdx.x] = half_of(in[threadIdx.x].sum());
  out[threadIdx.x + 1] = 0;
}
}
static vector<float> kept(1024);
int chosen = std::max(1, 2);
template <typename T> void launch(T* x) { ours::scale<T, 64><<<4, 256>>>(x, 1024); }
int main(int argc, char** argv) {
  float* x;
  CHECK(cudaMalloc(&x, 4096));
  launch(x);
  vector<float> back(1'024);
#ifdef SHOWN
  cout << R"(a } brace)" << back[0] << "}" << endl;
#endif
  return 0;
}
"""
HELPER = """\
#pragma once
#include <string>
inline std::string name_of(int x) { return std::to_string(x); }
static const char* word_for(cufftResult result) { return "result"; }
#ifndef __linux__
#error another system
#endif
__device__ inline int helped(int x) { return x % 7; }
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The file, beside its header."""
    (tmp_path / "helper.h").write_text(HELPER)
    (tmp_path / "not").mkdir()
    (tmp_path / "not" / "there.h").write_text("")
    path = tmp_path / "program.cu"
    path.write_text(PROGRAM)
    return path


def scaled(x: np.ndarray, times: int) -> np.ndarray:
    return (x * times + 2 * len(x) + np.arange(len(x)) % 7).astype(x.dtype)


@pytest.fixture(params=["nvcc", "NVRTC"])
def _compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "NVRTC":
        monkeypatch.setattr(compiling, "find_nvcc", lambda: None)
    elif find_nvcc() is None:
        pytest.skip("needs nvcc")


@pytest.mark.usefixtures("_compiler")
def test_a_program_with_a_main_function_runs(program: Path) -> None:
    x = np.arange(100, dtype=np.int32)
    wanted = scaled(x, 7)
    UserKernel.of_file(program, "ours::scale<int, 7>").run(x, 100, grid=1, block=128)
    np.testing.assert_array_equal(x, wanted)
    pairs, out = np.arange(128, dtype=np.float32), np.zeros(64, np.float32)
    result = UserKernel.of_file(program, "sums").run(out, pairs, grid=1, block=64)
    np.testing.assert_array_equal(out[:1], pairs[:2].sum() / np.float32(3))
    lines = PROGRAM.splitlines()
    for finding in result.findings:
        assert finding.source is not None
        file, line = finding.source.split(",")[0].rsplit(":", 1)
        assert Path(file).name == "program.cu"
        assert "out[threadIdx.x" in lines[int(line) - 1]
    assert any("out-of-bounds" in finding.kind for finding in result.findings)


@pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc")
def test_a_file_of_an_older_standard_runs() -> None:
    source = """
#include <cmath>
__host__ __device__ float lerp(float a, float b, float t) { return a + t * (b - a); }
__global__ void k(float* x) { *x = lerp(2.0f, 4.0f, 0.25f); }
int main() { return std::isnan(1.0); }
"""
    x = np.zeros(1, np.float32)
    UserKernel.of_source(source, "k").run(x, grid=1, block=1)
    assert x[0] == 2.5


def test_headers_that_only_a_host_has_are_empty_without_nvcc(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "find_nvcc", lambda: None)
    (program.parent / "not" / "there.h").unlink()
    x = np.arange(10, dtype=np.float32)
    wanted = scaled(x, 64)
    UserKernel.of_file(program, "ours::scale<float, 64>").run(x, 10, grid=1, block=32)
    np.testing.assert_array_equal(x, wanted)


def test_what_is_left_out_keeps_its_lines() -> None:
    left = without_host_code(PROGRAM)
    assert left.count("\n") == PROGRAM.count("\n")
    for gone in (
        "cudaEventCreate",
        "std::cout",
        "kept",
        "argc",
        "launch(",
        "chosen",
        "using",
        "timeval",
    ):
        assert gone not in left.replace("#define CHECK", ""), gone
    for there in ("ON_BOTH float sum()", "kTimes = 3", "twice(int x)", "#ifdef SHOWN", "scale(T*"):
        assert left.find(there) == PROGRAM.find(there)


def test_device_code_stays_as_it_is() -> None:
    source = (
        '#include <cuda_fp16.h>\nextern "C" { __device__ int a[2] = {1, 2}; }\n'
        "template <int N = (3 > 2), class T = float> struct Tile { T x[N]; Tile() {} };\n"
        "namespace cg = cooperative_groups;\nenum Kind { one, two };\nusing Short = Tile<1>;\n"
        "typedef float real;\n"
        "FLASH_DEVICE void f(int) { if (1) { } }\n__global__ void k(Tile<2> t);\n"
    )
    assert without_host_code(source) == source


def test_what_says_something_of_types_stays() -> None:
    source = (
        "template <class T> concept number = std::is_same_v<T, int> || std::is_same_v<T, float>;\n"
        "template <int N> using Size = std::conditional_t<(N > 0), int, std::nullptr_t>;\n"
        "struct Plain { using T = std::remove_const_t<const int>; T x; };\n"
        "struct Both { __device__ Both(int); int x; };\n"
    )
    assert without_host_code(source) == source


def test_functions_that_are_said_to_be_of_the_host_go() -> None:
    left = without_host_code(
        "struct Pair { int a; __host__ Pair() {} __host__ Pair(int x) : a{x} { }"
        " __host__ __device__ int sum() { return a; } };\n"
        "__host__ constexpr int rows() { return 4; }\n"
    )
    kept = "struct Pair { int a; __host__ __device__ int sum() { return a; } };"
    assert " ".join(left.split()) == kept


def test_a_template_is_named_with_its_arguments() -> None:
    source = "template <class T, int N> __global__ void scale(T* x) { x[threadIdx.x] *= N; }"
    x = np.arange(32, dtype=np.float64)
    kernel = UserKernel.of_source(source, "scale<double, 3>")
    assert kernel.name == "scale"
    kernel.run(x, grid=1, block=32)
    np.testing.assert_array_equal(x, 3.0 * np.arange(32))
    with pytest.raises(UnsupportedError, match=r"named with its arguments, as in scale<float, 64>"):
        UserKernel.of_source(source)
    with pytest.raises(CompileError, match="other"):
        UserKernel.of_source(source, "other<int>")


def test_macros_are_defined() -> None:
    x = np.zeros(4, np.int32)
    source = "__global__ void k(int* x) { x[threadIdx.x] = N + ODD(2); }"
    UserKernel.of_source(source, defines=["N=30", "ODD(x)=2*x+1"]).run(x, grid=1, block=4)
    np.testing.assert_array_equal(x, 35)


def test_mistakes_in_host_code_are_shown() -> None:
    with pytest.raises(CompileError, match="oops"):
        UserKernel.of_source("__global__ void k(int* x) { *x = oops; }\nint main() { return 0; }")


def test_a_compiler_that_hangs_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = tmp_path / "beats"
    script = tmp_path / "nvcc"
    script.write_text(f"#!/bin/sh\n(while :; do echo >> {beats}; sleep 0.05; done) &\nwait\n")
    script.chmod(0o755)
    monkeypatch.setattr(nvcc, "SECONDS", 0.5)
    with pytest.raises(RefusedSourceError, match=r"timed out after 0\.5 seconds"):
        nvcc.ptx_of_nvcc(str(script), "", "kernel.cu", [], None)
    before = beats.stat().st_size
    time.sleep(0.3)
    assert before == beats.stat().st_size > 0


LIBRARIES = """\
#pragma once
#include <algorithm>
#include <cublas_v2.h>
namespace scaling = ours;
extern cublasHandle_t handle;
void check(cublasStatus_t status) { if (status != CUBLAS_STATUS_SUCCESS) exit(1); }
__device__ float half_turn(uint i) { return i == 0 ? -INFINITY : scaling::kTwo * M_PI; }
"""


@pytest.mark.usefixtures("_compiler")
def test_what_nvcc_includes_of_itself_and_headers_of_libraries(tmp_path: Path) -> None:
    # No text here has host code but the header, and no library is installed.
    (tmp_path / "libraries.h").write_text(LIBRARIES)
    path = tmp_path / "turns.cu"
    path.write_text(
        "namespace ours { constexpr float kTwo = 2; }\n"
        '#include "libraries.h"\n'
        "__global__ void turns(float* x) { x[threadIdx.x] = half_turn(threadIdx.x); }\n"
    )
    x = np.zeros(2, np.float32)
    UserKernel.of_file(path).run(x, grid=1, block=2)
    np.testing.assert_array_equal(x, [-np.inf, np.float32(2 * np.pi)])


@pytest.mark.skipif(not toolkit_headers(), reason="needs the headers of a CUDA toolkit")
def test_the_types_that_come_with_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "find_nvcc", lambda: None)
    x = np.array([1.0, 2.5], np.float32)
    kernel = UserKernel.of_source(
        "#include <cublas_v2.h>\n__global__ void narrow(__nv_bfloat16* y, const float* x) {"
        " y[threadIdx.x] = x[threadIdx.x]; }\nvoid use(cublasHandle_t) {}\n"
    )
    y = np.zeros(2, np.uint16)
    kernel.run(y, x, grid=1, block=2)
    np.testing.assert_array_equal(bf16_to_f32(y), x)


def test_findings_name_the_lines_of_ones_own_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "find_nvcc", lambda: None)
    header = tmp_path / "deep" / "stores.h"
    header.parent.mkdir()
    header.write_text(
        "#pragma once\n#include <vector>\nstatic std::vector<int> kept;\n"
        "__device__ void store(int* x) {\n  x[threadIdx.x] = 1;\n}\n"
    )
    twice = '#include "deep/stores.h"\n'
    kernel = "__global__ void k(int* x) { store(x); }\n"
    (tmp_path / "k.cu").write_text(2 * twice + kernel)
    result = UserKernel.of_file(tmp_path / "k.cu").run(np.zeros(4, np.int32), grid=1, block=5)
    (finding,) = result.findings
    assert finding.kind == "global-out-of-bounds"
    assert finding.source is not None
    assert finding.source.startswith(f"{header}:5, called from ")


@pytest.mark.usefixtures("_compiler")
def test_headers_of_one_name_in_several_folders(tmp_path: Path) -> None:
    for number, folder in enumerate(("one", "two")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "all.h").write_text('#pragma once\n#include "value.h"\n')
        value = (
            f'#pragma once\n#include "../same.h"\nconstexpr int k_{folder} = {number} + kSame;\n'
        )
        (tmp_path / folder / "value.h").write_text(value)
    (tmp_path / "same.h").write_text("#pragma once\nconstexpr int kSame = 10;\n")
    path = tmp_path / "k.cu"
    includes = "".join(f'#include "{name}"\n' for name in ("one/all.h", "two/all.h", "same.h"))
    path.write_text(
        f"{includes}__global__ void k(int* x) {{ x[0] = k_one; x[1] = k_two; }}\nint main() {{}}\n"
    )
    x = np.zeros(2, np.int32)
    UserKernel.of_file(path).run(x, grid=1, block=1)
    np.testing.assert_array_equal(x, [10, 11])


@pytest.mark.usefixtures("_compiler")
def test_a_header_of_ones_own_that_is_missing_is_named() -> None:
    source = '#include "mine.h"\n__global__ void k(int* x) { *x = kMine; }'
    with pytest.raises(CompileError, match=r"mine\.h"):
        UserKernel.of_source(source)
    with pytest.raises(CompileError, match=r"kMine(?s:.*)mine\.h"):
        UserKernel.of_source(source + "\nint main() { return 0; }")
