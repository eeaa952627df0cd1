# SPDX-License-Identifier: Apache-2.0
"""Functions of a module that kernels call, and kernels beside one that cannot be read."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ptx_emulator import UserKernel
from ptx_emulator.errors import PtxError
from ptx_emulator.ptx import parse

CALLS = """
struct Triple { float a, b, c; };
__device__ __noinline__ Triple mixed(Triple x, double y, char n) {
  if (n & 1) return Triple{x.c, (float)y, (float)n};
  return Triple{x.a * 2, x.b + 1, (float)y};
}
__device__ __noinline__ void put(float* out, float value) {
  if (value > 10) return;
  *out = value;
}
__global__ void calls(float* out, const float* in, double* powers) {
  int t = threadIdx.x;
  Triple made = mixed(Triple{in[t], in[t] + 1, in[t] + 2}, t * 0.5, (char)t);
  put(out + 3 * t, made.a);
  put(out + 3 * t + 1, made.b);
  if (t % 3) put(out + 3 * t + 2, made.c);
  powers[t] = pow((double)in[t], 1.5) + sin(1e9 * powers[t]);
}
"""


def test_functions_that_are_called_give_their_results() -> None:
    threads = 64
    t, rng = np.arange(threads), np.random.default_rng(0)
    x, powers = rng.uniform(0.5, 2, threads).astype(np.float32), rng.normal(size=threads)
    wanted_powers = x.astype(np.float64) ** 1.5 + np.sin(1e9 * powers)
    out = np.full((threads, 3), -7, np.float32)
    kernel = UserKernel.of_source(CALLS)
    result = kernel.run(out, x, powers, grid=1, block=threads)
    odd = t % 2 == 1
    a, b, c = np.where(odd, x + 2, 2 * x), np.where(odd, t / 2, x + 2), np.where(odd, t, t / 2)
    wanted = np.stack([a, b, np.where(t % 3 > 0, c, 99)], axis=1)
    np.testing.assert_array_equal(out, np.where(wanted > 10, -7, wanted).astype(np.float32))
    np.testing.assert_allclose(powers, wanted_powers, rtol=1e-14, atol=1e-14)
    assert not result.findings


HAND_WRITTEN = """
.version 8.0
.target sm_80
.func (.reg .u32 result) add_one(.reg .u32 x)
{
  .reg .pred %p;
  setp.gt.u32 %p, x, 40;
  mov.u32 result, 7;
  @%p ret;
  add.u32 x, x, 1;
  mov.u32 result, x;
  ret;
}
.entry k(.param .u64 out)
{
  .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd<4>;
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, 5;
  setp.ne.u32 %p, %r0, 3;
  @%p call (%r1), add_one, (%r0);
  add.u32 %r1, %r1, %r0;
  ld.param.u64 %rd0, [out];
  mul.wide.u32 %rd1, %r0, 4;
  add.u64 %rd0, %rd0, %rd1;
  st.global.u32 [%rd0], %r1;
  ret;
}
"""


def test_registers_of_a_function_are_its_own() -> None:
    out, t = np.zeros(64, np.uint32), np.arange(64)
    UserKernel.of_ptx(HAND_WRITTEN).run(out, grid=1, block=64)
    np.testing.assert_array_equal(out, t + np.where(t == 3, 5, np.where(t > 40, 7, t + 1)))


def test_findings_in_a_function_name_the_line_that_calls_it() -> None:
    source = (
        "__device__ __noinline__ void put(int* out, int i) { out[i] = i; }\n"
        "__global__ void k(int* out) {\n"
        "  put(out, threadIdx.x);\n"
        "}\n"
    )
    result = UserKernel.of_source(source).run(np.zeros(31, np.int32), grid=1, block=32)
    (finding,) = result.findings
    assert finding.kind == "global-out-of-bounds"
    assert "kernel.cu:1, called from" in str(finding.source)
    assert "kernel.cu:3" in str(finding.source)


def test_recursion_is_refused_with_its_line() -> None:
    source = """__device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
    __global__ void k(int* out) { *out = fib(*out); }"""
    with pytest.raises(PtxError, match=r"kernel\.cu:1.*fib\w* calls itself, and recursion is not"):
        UserKernel.of_source(source)


@pytest.mark.parametrize(("functions", "calls"), [(3000, 1), (14, 2)])
def test_calls_within_calls_come_to_an_end(functions: int, calls: int) -> None:
    texts = [
        f".func f{n}()\n{{\n" + f"call f{n + 1}, ();\n" * calls + "ret;\n}\n"
        for n in range(functions)
    ]
    text = f".func f{functions}() {{ ret; }}\n" + "".join(reversed(texts))
    kernel = ".entry k()\n{\ncall f0, ();\nret;\n}\n"
    with pytest.raises(PtxError, match="functions call each other more than 64 deep or 4096 times"):
        parse(text + kernel)["k"]


def test_what_one_kernel_has_wrong_concerns_no_other() -> None:
    text = """
    .global .u64 table[1] = {unknown};
    .entry bad() { mov.u32 %nowhere, 1; ret; }
    .entry worse() { .reg .b64 %rd; mov.u64 %rd, table; ret; }
    .entry good() { ret; }
    """
    kernels = parse(text)
    assert [i.opcode for i in kernels["good"].instructions] == ["ret"]
    with pytest.raises(PtxError, match="'%nowhere' is neither declared"):
        kernels["bad"]
    with pytest.raises(PtxError, match="PTX line 2: table starts with 'unknown'"):
        kernels["worse"]
    UserKernel.of_ptx(text, "good").run(grid=1, block=32)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (".version 9.0\nhello", 2, "cannot read 'hello'"),
        ("\n.entry k\n{ ret;\n", 2, "the kernel that begins here is never closed"),
        (".entry k { ret; }\n.entry k { ret; }", 2, "the kernel k is defined twice"),
        ("\n.entry k(.param u32 x) { ret; }", 2, "cannot read the kernel parameter '.param u32 x'"),
        (".shared .u32 x;\n.global .u32 x;", 2, "x is declared twice"),
        (".shared .u32 x<4>;", 1, "only registers are declared in ranges"),
        ("\n\n.func f { {", 3, "the function f is never closed"),
    ],
)
def test_malformed_modules(text: str, line: int, message: str) -> None:
    with pytest.raises(PtxError, match=re.escape(message)) as error:
        list(parse(text).values())
    assert error.value.line == line


BY_ADDRESS = """
__device__ __noinline__ float one(float x) { return x + 1; }
__device__ __noinline__ float two(float x) { return x * 2; }
struct Base { __device__ virtual float get(float x) { return x; } };
struct Child : Base { __device__ float get(float x) override { return 3 * x; } };
extern "C" __global__ void by_pointer(float* out, int n) {
  float (*f)(float) = n > threadIdx.x ? one : two;
  out[threadIdx.x] = f(out[threadIdx.x]);
}
extern "C" __global__ void virtually(float* out, int n) {
  Base base;
  Child child;
  Base* p = n > threadIdx.x ? &base : &child;
  out[threadIdx.x] = p->get(out[threadIdx.x]);
}
extern "C" __global__ void plainly(float* out) { out[threadIdx.x] = one(two(out[threadIdx.x])); }
"""


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("by_pointer", r"kernel\.cu:8.*a call through a pointer is not emulated"),
        ("by_pointer", r"addresses of functions are not emulated"),
        ("virtually", r"only numbers are emulated, and no addresses, as tables of virtual"),
    ],
)
def test_a_call_by_address_is_refused(entry: str, said: str) -> None:
    with pytest.raises(PtxError, match=said):
        UserKernel.of_source(BY_ADDRESS, entry)


def test_kernels_beside_calls_by_address_run() -> None:
    x = np.arange(32, dtype=np.float32)
    UserKernel.of_source(BY_ADDRESS, "plainly").run(out := x.copy(), grid=1, block=32)
    np.testing.assert_array_equal(out, 2 * x + 1)
