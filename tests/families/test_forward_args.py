# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes

import pytest

from flash_attention.compile import compile_kernel
from flash_attention.errors import CompileError
from flash_attention.families.forward_args import ForwardKernelArgs, Strides, layout_asserts

KERNEL = 'extern "C" __global__ void flash_forward_kernel() {}\n'


def test_the_compiler_lays_the_struct_out_as_ctypes_does() -> None:
    source = f"#include <fa/kernel_args.cuh>\n{layout_asserts()}\n{KERNEL}"
    compile_kernel(source, arch="sm_80", name="layout")


def test_a_layout_that_differs_does_not_compile() -> None:
    offset = ForwardKernelArgs.seq_len_k.offset
    wrong = layout_asserts().replace(f"seq_len_k) == {offset}", f"seq_len_k) == {offset - 4}")
    assert wrong != layout_asserts()
    with pytest.raises(CompileError, match="seq_len_k"):
        compile_kernel(
            f"#include <fa/kernel_args.cuh>\n{wrong}\n{KERNEL}", arch="sm_80", name="wrong_layout"
        )


def test_every_member_is_pinned() -> None:
    text = layout_asserts()
    members = len(ForwardKernelArgs._fields_) + len(Strides._fields_)
    assert text.count("static_assert") == members + 2
    assert f"sizeof(fa::ForwardKernelArgs) == {ctypes.sizeof(ForwardKernelArgs)}" in text
