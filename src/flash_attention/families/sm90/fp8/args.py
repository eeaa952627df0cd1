# SPDX-License-Identifier: Apache-2.0
"""Fp8KernelArgs: the run-time arguments of an FP8 forward kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import ClassVar

from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.families.call_args import Fields, layout_asserts, parameter
from flash_attention.families.forward_args import ForwardKernelArgs, fill_forward_args


class Fp8KernelArgs(ForwardKernelArgs):
    """Mirror of `fa::Fp8KernelArgs` (include/fa/sm90/fp8/args.cuh)."""

    _fields_: ClassVar[Fields] = (
        ("v_tiles", ctypes.c_void_p),  # V transposed, tile by tile
        ("v_tiles_keys", ctypes.c_int32),  # of one head of a sequence, or of all packed ones
        ("v_tiles_step", ctypes.c_int32),
        ("zero", ctypes.c_uint32),  # 0, which the compiler does not know
    )

    def put_lengths(self, problem: Problem) -> None:
        super().put_lengths(problem)
        self.v_tiles_keys = tiles_keys(self.v_tiles_step, problem)


PARAMETER = parameter(Fp8KernelArgs)
LAYOUT_ASSERTS = layout_asserts(Fp8KernelArgs)


def tiles_keys(step: int, problem: Problem) -> int:
    """Count the keys of a head in V transposed, in whole steps: of the longest sequence, or of all
    packed ones, which lose less than a step each."""
    keys = problem.seq_k
    if problem.total_k is not None:
        keys = problem.total_k + problem.batch * (step - 1)
    return -(-keys // step) * step


def fp8_args(problem: Problem, views: Sequence[TensorView], *, v_tiles_step: int) -> Fp8KernelArgs:
    """Make the arguments of a kernel without addresses, from views of q, k, v and o."""
    args = Fp8KernelArgs(v_tiles_step=v_tiles_step)
    fill_forward_args(args, problem, views)
    return args
