# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
import torch

from flash_attention.call.problem import Problem
from flash_attention.compile import compile_kernel
from flash_attention.errors import CompileError
from flash_attention.families.call_args import Strides, fields_of
from flash_attention.families.forward_args import LAYOUT_ASSERTS, ForwardKernelArgs, forward_args
from tests.families.problems import views_of

PROBLEM = Problem(
    batch=5,
    seq_q=192,
    seq_k=512,
    heads=6,
    heads_k=2,
    d_head=64,
    d_v=40,
    dtype=torch.float16,
    softmax_scale=0.125,
)
KERNEL = 'extern "C" __global__ void flash_forward_kernel() {}\n'


def test_the_compiler_lays_the_struct_out_as_ctypes_does() -> None:
    source = f"#include <fa/forward_args.cuh>\n{LAYOUT_ASSERTS}\n{KERNEL}"
    compile_kernel(source, arch="sm_80", name="layout")


def test_a_layout_that_differs_does_not_compile() -> None:
    offset = ForwardKernelArgs.seq_len_k.offset
    wrong = LAYOUT_ASSERTS.replace(f"seq_len_k) == {offset}", f"seq_len_k) == {offset - 4}")
    assert wrong != LAYOUT_ASSERTS
    with pytest.raises(CompileError, match="seq_len_k"):
        compile_kernel(
            f"#include <fa/forward_args.cuh>\n{wrong}\n{KERNEL}", arch="sm_80", name="wrong_layout"
        )


def test_every_member_is_pinned() -> None:
    text = LAYOUT_ASSERTS
    members = len(fields_of(ForwardKernelArgs)) + len(Strides._fields_)
    assert text.count("static_assert") == members + 2
    assert f"sizeof(fa::ForwardKernelArgs) == {ctypes.sizeof(ForwardKernelArgs)}" in text


def numbers(args: ForwardKernelArgs) -> dict[str, object]:
    """The members that are not zero; strides as tuples."""
    members = {name: getattr(args, name) for name in fields_of(ForwardKernelArgs)}
    for name, value in members.items():
        if isinstance(value, ctypes.Structure):
            strides = tuple(getattr(value, field[0]) for field in value._fields_)
            members[name] = strides if any(strides) else ()
        elif isinstance(value, ctypes.Array):
            members[name] = tuple(value) if any(value) else ()
    return {name: value for name, value in members.items() if value}


def test_a_threshold_is_spread_over_words() -> None:
    """Of 256 numbers, 230 = 0b11100110 keep a weight: the lowest bit first, all ones for a 0."""
    found = numbers(forward_args(replace(PROBLEM, dropout_p=0.1), views_of(PROBLEM)))
    zero, one = 0xFFFFFFFF, 0
    assert found["dropout_zeros"] == (zero, one, one, zero, zero, one, one, one)
    assert found["dropout_scale"] == pytest.approx(256 / 230)


def test_descale_factors_have_the_strides_of_the_problem() -> None:
    strides = (("k_descale", (6, 3, 1)), ("v_descale", (2, 1)), ("q_descale", (0, 0)))
    args = forward_args(replace(PROBLEM, descale_strides=strides), views_of(PROBLEM))
    found = {n: v for n, v in numbers(args).items() if n.endswith("descale_stride")}
    assert found == {"k_descale_stride": (6, 3, 1), "v_descale_stride": (2, 1, 0)}


def test_arguments_are_what_the_problem_and_the_strides_say() -> None:
    assert numbers(forward_args(PROBLEM, views_of(PROBLEM))) == {
        "q_stride": (192 * 6 * 64, 6 * 64, 64),
        "k_stride": (512 * 2 * 64, 2 * 64, 64),
        "v_stride": (512 * 2 * 40, 2 * 40, 40),
        "o_stride": (192 * 6 * 40, 6 * 40, 40),
        "lse_batch_stride": 6 * 192,
        "lse_head_stride": 192,
        "batch": 5,
        "heads": 6,
        "heads_per_kv": 3,
        "seq_len_q": 192,
        "seq_len_k": 512,
        "d_qk": 64,
        "d_v": 40,
        "softmax_scale": 0.125,
        "dropout_scale": 1.0,
    }


def test_what_few_calls_have_is_packed_too() -> None:
    asked = replace(
        PROBLEM,
        window=(7, 3),
        softcap=2.5,
        total_q=900,
        seqused_k=True,
        page_keys=16,
        pages=40,
        table_stride=11,
    )
    args = forward_args(asked, views_of(asked), key_blocks=8, split_blocks=2)
    assert (args.window_left, args.window_right, args.softcap) == (7, 3, 2.5)
    assert (args.lse_batch_stride, args.lse_head_stride) == (0, 900)
    assert (args.block_table_stride, args.key_blocks, args.split_blocks) == (11, 8, 2)
    assert (args.k_stride.batch, args.k_stride.seq) == (16 * 2 * 64, 2 * 64)
