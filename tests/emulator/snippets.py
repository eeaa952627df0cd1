# SPDX-License-Identifier: Apache-2.0
"""Hand-written PTX kernels of a few lines, and a way to run them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptx_emulator import GlobalMemory, RunResult, load_program, run

HEADER = """.version 8.7
.target sm_80
.address_size 64
.visible .entry snippet(.param .u64 snippet_out, .param .u64 snippet_in)
{
.reg .pred %p<16>;
.reg .b16 %h<16>;
.reg .b32 %r<64>;
.reg .f32 %f<64>;
.reg .b64 %rd<32>;
.shared .align 16 .b8 buffer[4096];
ld.param.u64 %rd0, [snippet_out];
ld.param.u64 %rd1, [snippet_in];
mov.u32 %r0, %tid.x;
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %ntid.x;
mad.lo.s32 %r3, %r1, %r2, %r0;
mul.wide.u32 %rd2, %r3, 4;
add.s64 %rd3, %rd0, %rd2;
add.s64 %rd4, %rd1, %rd2;
"""

STORE = "st.global.u32 [%rd3], %r10;\n"


def kernel(body: str) -> str:
    """A kernel whose thread t has its index in %r3, its word of `out` at %rd3, of `in` at %rd4."""
    return f"{HEADER}{body}\nret;\n}}\n"


def run_body(
    body: str,
    data: Any = None,
    *,
    threads: int = 64,
    ctas: int = 2,
    dtype: Any = np.uint32,
    **options: Any,
) -> tuple[np.ndarray, RunResult]:
    """Run a body over `ctas` x `threads` words; what it stored in `out`, and the run."""
    memory = GlobalMemory()
    given = np.zeros(threads * ctas, np.uint32) if data is None else np.asarray(data)
    source = memory.alloc(given)
    out = memory.alloc(np.full(threads * ctas, 0xDEADBEEF, np.uint32))
    program = load_program(kernel(body))
    result = run(program, memory, grid=(ctas, 1, 1), block=threads, args=[out, source], **options)
    return memory.read(out, dtype, (threads * ctas,)), result
