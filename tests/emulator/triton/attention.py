# SPDX-License-Identifier: Apache-2.0
"""A plain attention kernel in Triton, and how attention.ptx beside it was made (no GPU needed):

pip install triton==3.7.1 && python tests/emulator/triton/attention.py

Then everything behind the kernel (debug sections) was cut and the two .file lines shortened.
"""

# mypy: ignore-errors
# ruff: noqa: N803
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def attention(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    scale,
    seq_len,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    D: tl.constexpr,
):
    start = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1)
    base = head * seq_len * D
    rows = start + tl.arange(0, BLOCK_M)
    keys = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, D)
    q = tl.load(q_ptr + base + rows[:, None] * D + dims[None, :])
    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    for first in range(0, seq_len, BLOCK_N):
        k = tl.load(k_ptr + base + (first + keys)[:, None] * D + dims[None, :])
        s = tl.dot(q, tl.trans(k)) * scale
        new_best = tl.maximum(best, tl.max(s, 1))
        p = tl.exp2(s - new_best[:, None])
        shrink = tl.exp2(best - new_best)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(v_ptr + base + (first + keys)[:, None] * D + dims[None, :])
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v).to(tl.float32)
        best = new_best
    out = acc / total[:, None]
    tl.store(o_ptr + base + rows[:, None] * D + dims[None, :], out.to(o_ptr.dtype.element_ty))


POINTERS = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "o_ptr"), "*fp16")
BLOCKS = {"BLOCK_M": 64, "BLOCK_N": 32, "D": 64}

if __name__ == "__main__":
    source = ASTSource(
        fn=attention,
        signature={**POINTERS, "scale": "fp32", "seq_len": "i32"}
        | dict.fromkeys(BLOCKS, "constexpr"),
        constexprs=BLOCKS,
        attrs={(i,): [["tt.divisibility", 16]] for i in (0, 1, 2, 3, 5)},
    )
    kernel = triton.compile(
        source, target=GPUTarget("cuda", 80, 32), options={"num_warps": 4, "num_stages": 2}
    )
    Path(__file__).with_suffix(".ptx").write_text(kernel.asm["ptx"])
