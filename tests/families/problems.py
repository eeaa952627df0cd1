# SPDX-License-Identifier: Apache-2.0
"""What a family is asked with: a problem, and tensors that would have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from flash_attention.arch import Arch
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.families.config import KernelConfig
from flash_attention.families.recipe import AnyKvSplits, Recipe, Setting
from flash_attention.families.registry import family_of

GPU = torch.device("cuda", 0)


def view(name: str, *shape: int, dtype: torch.dtype = torch.float16) -> TensorView:
    """A dense tensor on a GPU, that need not be there."""
    strides = torch.empty(shape, device="meta").stride()
    return TensorView(name, shape, strides, dtype, GPU)


def views_of(problem: Problem) -> list[TensorView]:
    """q, k, v and the output of a problem, each with a batch dimension."""
    q_rows = (problem.batch, problem.seq_q)
    if problem.total_q is not None:
        q_rows = (1, problem.total_q)
    k_rows = (problem.batch, problem.seq_k)
    if problem.page_keys:
        k_rows = (problem.pages, problem.page_keys)
    elif problem.total_k is not None:
        k_rows = (1, problem.total_k)
    shapes = {
        "q": (*q_rows, problem.heads, problem.d_head),
        "k": (*k_rows, problem.heads_k, problem.d_head),
        "v": (*k_rows, problem.heads_k, problem.d_v),
        "o": (*q_rows, problem.heads, problem.d_v),
    }
    return [view(name, *shape, dtype=problem.dtype) for name, shape in shapes.items()]


def recipe_of(
    config: KernelConfig,
    problem: Problem,
    *,
    views: Sequence[TensorView] | None = None,
    arch: Arch | None = None,
    num_sms: int = 1,
    split: AnyKvSplits = None,
) -> Recipe:
    """How the family of a config answers a problem, by default of dense tensors."""
    setting = Setting(arch or config.default_arch, num_sms, split=split)
    given = views_of(problem) if views is None else views
    return family_of(config).recipe(config, problem, given, setting)


def backward_views_of(problem: Problem) -> list[TensorView]:
    """do, q, k, v, o, dq, dk and dv of a problem, each with a batch dimension."""
    q, k, v, o = views_of(problem)
    named = {"do": o, "q": q, "k": k, "v": v, "o": o, "dq": q, "dk": k, "dv": v}
    return [replace(like, name=name) for name, like in named.items()]
