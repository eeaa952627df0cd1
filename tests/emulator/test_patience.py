# SPDX-License-Identifier: Apache-2.0
"""Kernels that never end, PTX that goes deep, arguments that are empty or none: errors say so."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from ptx_emulator import Empty, EmulatorError, LaunchError, UserKernel
from ptx_emulator.errors import UnsupportedError

NEVER_ENDS = {
    "a number that does not change": 'int i = 0;\n while (i < n) asm volatile("");',
    "a race in every turn": "unsigned x = 1;\n while (x) { x = x * 3;\n out[0] = x; }",
    "others wait at a barrier": 'if (threadIdx.x < 32)\n for (;;) asm volatile("");\n'
    " __syncthreads();",
}


@pytest.mark.parametrize("name", NEVER_ENDS)
def test_a_loop_that_never_ends_is_given_up(name: str) -> None:
    source = f"__global__ void k(int* out, int n) {{\n {NEVER_ENDS[name]}\n}}"
    kernel, start = UserKernel.of_source(source), time.monotonic()
    with pytest.raises(LaunchError) as stopped:
        kernel.run(np.zeros(64, np.int32), 1, grid=1, block=64, patience=0.5)
    assert time.monotonic() - start < 30  # of a busy machine; a second otherwise
    said = str(stopped.value)
    assert "turns of the loop at PTX line" in said
    assert "kernel.cu:3" in said
    assert "CTA 0 warp 0" in said
    if "barrier" in name:
        assert "warps 1" in said


def test_a_loop_of_many_turns_ends() -> None:
    source = (
        "__global__ void k(int* out, int n) { for (int i = 0; i < n; ++i) out[0] += i ^ *out; }"
    )
    out, wanted = np.zeros(1, np.int32), 0
    for i in range(5000):
        wanted = (wanted + (i ^ wanted)) % (1 << 32)
    UserKernel.of_source(source).run(out, 5000, grid=1, block=1, patience=None)
    assert out.view(np.uint32)[0] == wanted


def of_body(body: str) -> UserKernel:
    registers = ".reg .b32 %r<9>; .reg .b64 %rd<5000>;"
    return UserKernel.of_ptx(
        f".version 8.0\n.target sm_80\n.entry k(.param .u64 p)\n{{\n{registers}\n{body}\nret;\n}}"
    )


def test_a_long_chain_of_addresses_is_followed() -> None:
    links = "\n".join(f"add.s64 %rd{i + 1}, %rd{i}, 0;" for i in range(4000))
    out = np.zeros(1, np.int32)
    start = "mov.u64 %rd0, p;"
    of_body(f"{start}\n{links}\nld.param.u64 %rd4001, [%rd4000]; st.global.u32 [%rd4001], 7;").run(
        out, grid=1, block=1
    )
    assert out[0] == 7


@pytest.mark.parametrize(
    "body",
    [
        "mov.u64 %rd1, %rd1; st.global.u32 [%rd1], 1;",
        "mov.u64 %rd1, %rd2; mov.u64 %rd2, %rd1; ld.param.u64 %rd3, [%rd1];",
        "{" * 5000 + "}" * 5000 + "st.global.u32 [0], 1;",
    ],
)
def test_registers_that_name_each_other_and_deep_braces_end(body: str) -> None:
    result = of_body(body).run(np.zeros(1, np.int32), grid=1, block=1)
    assert result.findings


STORE = "__global__ void k(float* out, int n) { if (threadIdx.x < n) out[threadIdx.x] = 1; }"


@pytest.mark.parametrize("empty", [np.zeros(0, np.float32), Empty(0), Empty((0, 3))])
def test_empty_arrays_are_passed(empty: Any) -> None:
    kernel = UserKernel.of_source(STORE)
    result = kernel.run(empty, 0, grid=1, block=32)
    assert result.arrays[0].size == 0
    assert not result.findings
    (finding,) = kernel.run(empty, 1, grid=1, block=32).findings
    assert finding.kind == "global-out-of-bounds"


@pytest.mark.parametrize(
    ("args", "launch", "message"),
    [
        ((np.array([None]), 1), {}, "has elements of object; pass numbers"),
        ((Empty(-4), 1), {}, "has the shape -4; no size is negative"),
        ((Empty(1 << 60), 1), {}, "bytes of global memory do not fit here"),
        ((Empty(4), 1), {"grid": 1.5}, "grid is 1.5; pass one to three whole numbers"),
        ((Empty(4), 1), {"names": ["out"]}, "1 names for 2 arguments; pass one for each"),
    ],
)
def test_arguments_that_are_none_are_refused(
    args: tuple[Any, ...], launch: dict[str, Any], message: str
) -> None:
    with pytest.raises(EmulatorError, match=message):
        UserKernel.of_source(STORE).run(*args, **{"grid": 1, "block": 32, **launch})


@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_text_that_no_compiler_takes_is_refused(character: str) -> None:
    with pytest.raises(UnsupportedError, match="holds a character that no CUDA text has"):
        UserKernel.of_source(f"__global__ void k() {{}} // {character}")
