# SPDX-License-Identifier: Apache-2.0
"""Which kernel is meant: a short form, a rung of the ladder, or what a problem gets."""

from __future__ import annotations

import torch

from flash_attention.arch import Arch, get_arch
from flash_attention.call.features import Features
from flash_attention.choose.tables import NO_DEVICE, Device, choose
from flash_attention.errors import UnsupportedError
from flash_attention.families.sm90.forward.config import HOPPER
from flash_attention.families.sm90.forward.short_queries import select_chunks
from flash_attention.kernel_configs import DType, KernelConfig, parse_kernel_config
from flash_attention.launch.kernels import current_arch, device_sms
from flash_attention.tools.bench.grid_file import EXAMPLE, read_point
from flash_attention.tools.commands.options import ladder_of, pick_rung
from flash_attention.tools.explain.gpus import gpu_of_arch

FORMS = f"a short form, rung:N, or selected: and a problem as in 'selected:{EXAMPLE}'"

Subject = tuple[KernelConfig, Features | None]
"""A config; and the features of its problem, where one was given."""


def subject_of(text: str, *, dtype: str, d_head: int, heads: int, arch: str | None) -> Subject:
    """The kernel that `text` names."""
    kind, colon, rest = text.partition(":")
    if kind == "rung" and colon:
        if not rest.strip().isdecimal():
            raise UnsupportedError(f"rung:{rest} names no rung; write rung:16")
        return pick_rung(ladder_of(dtype, d_head, heads), int(rest)).config, None
    if kind == "selected" and colon:
        return _selected(rest, DType.from_string(dtype), arch_named(arch))
    if "(" not in text:
        raise UnsupportedError(f"{text!r} names no kernel; give {FORMS}")
    return parse_kernel_config(text), None


def _selected(words: str, dtype: DType, named: Arch | None) -> Subject:
    """What `attention` runs: on this GPU, or on the one that stands for an architecture."""
    problem = read_point(words.replace(",", " ")).problem(dtype)
    arch = named or current_arch(HOPPER)
    device, sms = _where(arch, here=named is None and torch.cuda.is_available())
    if short := select_chunks(problem, arch, sms):
        hopper, chunks = short
        return hopper, chunks.features(problem.features)
    config = choose(problem, arch, device).config
    return config, problem.features_for(config)


def _where(arch: Arch, *, here: bool) -> tuple[Device, int]:
    """Whose tables are asked, and how many multiprocessors it has."""
    if here:
        index = torch.cuda.current_device()
        return index, device_sms(index)
    gpu = gpu_of_arch(arch.name)
    return (NO_DEVICE, 1) if gpu is None else (gpu.name, gpu.num_sms)


def arch_named(name: str | None) -> Arch | None:
    """An architecture; sm_90a is what kernels of sm_90 are compiled for."""
    return None if name is None else get_arch(name.removesuffix("a"))
