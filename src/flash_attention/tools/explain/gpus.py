# SPDX-License-Identifier: Apache-2.0
"""What GPUs reach at best, measured on them: the two lines of a roofline."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Gpu:
    """A GPU as torch names it, and what torch reached on it: in a product of bf16 matrices, and in
    a copy within its memory, bytes loaded and stored together."""

    name: str
    arch: str
    num_sms: int
    matmul_tflops: float
    copy_tb_s: float


GPUS = (Gpu("NVIDIA H200", "sm_90", 132, matmul_tflops=784.3, copy_tb_s=4.27),)


def gpu_of_device(device: torch.device) -> Gpu | None:
    """The GPU that a CUDA device is, None if nobody measured it."""
    name = torch.cuda.get_device_name(device)
    return next((gpu for gpu in GPUS if gpu.name == name), None)


def gpu_of_arch(arch: str) -> Gpu | None:
    """The measured GPU that stands for an architecture, None without one."""
    return next((gpu for gpu in GPUS if gpu.arch == arch), None)
