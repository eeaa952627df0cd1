# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flash_attention.call.backward_call import BackwardProblem
from flash_attention.compile import compile_kernel
from flash_attention.families.backward_args import (
    LAYOUT_ASSERTS,
    STAT_BLOCK,
    BackwardKernelArgs,
    backward_args,
    stat_bytes,
    stat_rows,
)
from flash_attention.families.call_args import fields_of
from tests.families.problems import backward_views_of

PROBLEM = BackwardProblem(
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


def test_the_compiler_lays_the_struct_out_as_ctypes_does() -> None:
    kernel = 'extern "C" __global__ void kernel() {}\n'
    source = f"#include <fa/backward_args.cuh>\n{LAYOUT_ASSERTS}\n{kernel}"
    compile_kernel(source, arch="sm_80", name="backward_layout")
    size = ctypes.sizeof(BackwardKernelArgs)
    assert f"sizeof(fa::BackwardKernelArgs) == {size}" in LAYOUT_ASSERTS
    assert all(f"->{name})" in LAYOUT_ASSERTS for name in fields_of(BackwardKernelArgs))


def test_arguments_are_what_the_problem_and_the_strides_say() -> None:
    args = backward_args(PROBLEM, backward_views_of(PROBLEM))
    assert (args.batch, args.heads, args.heads_per_kv) == (5, 6, 3)
    assert (args.seq_len_q, args.seq_len_k, args.d_qk, args.d_v) == (192, 512, 64, 40)
    assert (args.d_o_stride.seq, args.o_stride.head) == (6 * 40, 40)
    assert (args.dk_stride.batch, args.dv_stride.seq) == (512 * 2 * 64, 2 * 40)
    assert (args.stat_rows, args.total_q, args.total_k) == (5 * 256, 0, 0)


def test_packed_tensors_tell_their_rows() -> None:
    packed = replace(PROBLEM, total_q=900, total_k=1000)
    args = backward_args(packed, backward_views_of(packed))
    assert (args.total_q, args.total_k, args.lse_head_stride) == (900, 1000, 900)
    assert args.stat_rows == 1664  # 900 + 5 * 128, in blocks of 128
    assert stat_bytes(packed, 64) == 4 * 6 * 1664 * 64


@given(st.lists(st.integers(0, 400), min_size=1, max_size=9), st.integers(0, 200))
def test_every_packed_sequence_has_whole_blocks_of_its_own(lengths: list[int], unused: int) -> None:
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    total = starts[-1] + unused
    problem = replace(PROBLEM, batch=len(lengths), total_q=total)
    # as first_stat_row of include/fa/backward_args.cuh
    firsts = [s // STAT_BLOCK * STAT_BLOCK + b * STAT_BLOCK for b, s in enumerate(starts)]
    rooms = [end - start for start, end in pairwise(firsts)]
    for length, room in zip(lengths, rooms, strict=True):
        assert room >= -(-length // STAT_BLOCK) * STAT_BLOCK
    assert firsts[-1] <= stat_rows(problem)


@pytest.mark.parametrize(("seq", "rows"), [(1, 128), (128, 128), (129, 256)])
def test_dense_rows_are_rounded_up(seq: int, rows: int) -> None:
    assert stat_rows(replace(PROBLEM, batch=1, seq_q=seq)) == rows
