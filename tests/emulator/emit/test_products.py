# SPDX-License-Identifier: Apache-2.0
"""Chains of wgmma are emitted as one product, and nothing comes ahead of a chain."""

from __future__ import annotations

import re

from ptx_emulator import load_program

KERNEL = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry chains()
{{
.reg .pred %p<2>;
.reg .f32 %f<12>;
.reg .b32 %r<8>;
.reg .b64 %rd<8>;
mov.u64 %rd0, 64;
mov.u64 %rd1, 128;
mov.b32 %r0, 1024;
{body}
ret;
}}
"""
FIRST, SECOND = "{%f0, %f1, %f2, %f3}", "{%f4, %f5, %f6, %f7}"
COMMIT = "wgmma.commit_group.sync.aligned;"


def product(accumulators: str, scale_d: str = "1") -> str:
    kind = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
    return f"{kind} {accumulators}, %rd0, %rd1, {scale_d}, 1, 1, 0, 0;"


def calls(*body: str) -> list[str]:
    """What of the tensor cores and of memory the kernel calls: products by the steps they have."""
    program = load_program(KERNEL.format(body="\n".join(body)))
    found = []
    for line in "\n".join(program._texts).splitlines():
        if "multiply_steps" in line:
            found.append(str(len(re.findall(r"\(t\d+, t\d+, \d+\)", line))))
        elif name := re.search(r"m\.(wgmma\.commit|shared\.store)", line):
            found.append(name[1].split(".")[1])
    return found


def test_products_on_one_accumulator_are_one() -> None:
    more = "add.s64 %rd0, %rd0, 2;"
    body = (product(FIRST, "0"), more, product(FIRST), more, product(FIRST), COMMIT)
    assert calls(*body) == ["3", "commit"]


def test_a_product_that_does_not_add_begins_a_chain() -> None:
    assert calls(product(FIRST), product(FIRST, "0"), product(FIRST), COMMIT) == [
        "1",
        "2",
        "commit",
    ]


def test_another_accumulator_begins_a_chain() -> None:
    body = (product(FIRST), product(FIRST), product(SECOND), product(FIRST), COMMIT)
    assert calls(*body) == ["2", "1", "1", "commit"]


def test_a_chain_ends_before_a_store_and_before_its_sum_is_read() -> None:
    store = "st.shared.b32 [%r0], %r0;"
    assert calls(product(FIRST), store, product(FIRST), COMMIT) == ["1", "store", "1", "commit"]
    read = ("add.f32 %f8, %f0, %f0;", "st.shared.f32 [%r0], %f8;")
    assert calls(product(FIRST), product(FIRST), *read) == ["2", "store"]


def test_a_chain_is_not_too_long() -> None:
    assert calls(*[product(FIRST)] * 11, COMMIT) == ["8", "3", "commit"]


def test_a_predicate_of_a_constant_is_one() -> None:
    """As wrappers of wgmma in CUDA text make it."""
    add = ("mov.b32 %r1, {};", "setp.ne.b32 %p1, %r1, 0;")
    chain = (product(FIRST, "0"), product(FIRST, "%p1"), COMMIT)
    assert calls(add[0].format(1), add[1], *chain) == ["2", "commit"]
    assert calls(add[0].format(0), add[1], *chain) == ["1", "1", "commit"]
    always = "setp.eq.b32 %p1, 0, 0;"
    assert calls(always, *chain) == ["2", "commit"]
    twice = (add[0].format(1), add[0].format(2))
    assert calls(*twice, add[1], *chain) == ["1", "1", "commit"]
