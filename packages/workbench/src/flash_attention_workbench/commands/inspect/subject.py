# SPDX-License-Identifier: Apache-2.0
"""Which kernel is meant: a short form, a rung of the ladder, or what a problem gets."""

from __future__ import annotations

import torch

from flash_attention.arch import MEASURED_ARCH, Arch, get_arch
from flash_attention.call.dtype import DType
from flash_attention.call.features import Features
from flash_attention.choose.rules import choose
from flash_attention.errors import UnsupportedError, quoted
from flash_attention.families.config import KernelConfig
from flash_attention.families.recipe import Setting
from flash_attention.families.registry import family_of
from flash_attention.kernel_configs import as_kernel_config
from flash_attention.launch.device import current_arch, device_sms
from flash_attention_workbench.bench.grid_file import EXAMPLE, read_point
from flash_attention_workbench.commands.options import pass_named
from flash_attention_workbench.explain.gpus import gpu_of_arch

FORMS = f"a short form, rung:N, or selected: and a problem as in 'selected:{EXAMPLE}'"
Subject = tuple[KernelConfig, Features | None]
"""A config; and the features of its problem, where one was given."""


def subject_of(
    text: str, *, dtype: str, d_head: int, heads: int, pass_: str, arch: str | None
) -> Subject:
    """The kernel that `text` names."""
    kind, colon, rest = text.partition(":")
    if kind == "selected" and colon:
        return _selected(rest, DType.from_string(dtype), arch_named(arch))
    if "(" not in text and kind != "rung":
        raise UnsupportedError(f"{quoted(text)} names no kernel; give {FORMS}")
    element = DType.from_string(dtype)
    config = as_kernel_config(
        text, dtype=element, d_head=d_head, n_heads=heads, pass_=pass_named(pass_)
    )
    return config, None


def _selected(words: str, dtype: DType, named: Arch | None) -> Subject:
    """What `attention` runs: on this GPU, or on the one that stands for an architecture."""
    problem = read_point(words.replace(",", " ")).problem(dtype)
    arch = named or current_arch(MEASURED_ARCH)
    here = named is None and torch.cuda.is_available()
    choice = choose(problem, _setting(arch, here=here))
    config, split = choice.config, choice.setting.split
    return config, family_of(config).features(config, problem, split=split)


def _setting(arch: Arch, *, here: bool) -> Setting:
    """Whose tables are asked, and how many multiprocessors it has."""
    if here:
        index = torch.cuda.current_device()
        return Setting(arch, device_sms(index), device=index)
    gpu = gpu_of_arch(arch.name)
    return Setting(arch, 1) if gpu is None else Setting(arch, gpu.num_sms, device=gpu.name)


def arch_named(name: str | None) -> Arch | None:
    """An architecture; sm_90a is what kernels of sm_90 are compiled for."""
    return None if name is None else get_arch(name.removesuffix("a"))
