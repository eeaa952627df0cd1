# SPDX-License-Identifier: Apache-2.0
"""Measured peaks of GPUs: matrix throughput and memory bandwidth, the two lines of a roofline."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Gpu:
    """A GPU under torch's name for it, and the peaks that torch reached on it: in a product of bf16
    matrices, in one of e4m3 matrices, and in a copy within its memory (bytes loaded and stored)."""

    name: str
    arch: str
    num_sms: int
    matmul_tflops: float
    fp8_matmul_tflops: float
    copy_tb_s: float


GPUS = (
    Gpu("NVIDIA H200", "sm_90", 132, matmul_tflops=784.3, fp8_matmul_tflops=1494.0, copy_tb_s=4.27),
)


def gpu_of_device(device: torch.device) -> Gpu | None:
    """Return the measured GPU of a CUDA device, or None."""
    name = torch.cuda.get_device_name(device)
    return next((gpu for gpu in GPUS if gpu.name == name), None)


def gpu_of_arch(arch: str) -> Gpu | None:
    """Return the measured GPU of an architecture, or None."""
    return next((gpu for gpu in GPUS if gpu.arch == arch), None)
