# SPDX-License-Identifier: Apache-2.0
"""Tangents by a kernel."""

from __future__ import annotations

import torch

from flash_attention.arch import MEASURED_ARCH
from flash_attention.call.checks import check_call
from flash_attention.call.tangent_call import TangentCall, WithTangent
from flash_attention.call.tensors import TensorView
from flash_attention.families.readable import as_readable
from flash_attention.families.sm90.tangent.recipe import check_runs, tangent_recipe
from flash_attention.launch.device import CPU, device_arch, num_sms_of
from flash_attention.launch.small import run_small

RESULTS = ("o", "lse", "o_tangent", "lse_tangent")


def tangent_by_kernel(asked: TangentCall) -> WithTangent:
    """Compute a call and the tangent of its results. On a GPU nothing waits for it; on the CPU the
    emulator runs the kernel."""
    q, k, v = asked.call[:3]
    index = q.get_device()
    arch = MEASURED_ARCH if index == CPU else device_arch(index)
    problem, _ = check_call(asked.call)
    check_runs(problem, arch)
    o = q.new_empty((*q.shape[:-1], problem.d_v))
    lse = torch.empty(problem.lse_shape, dtype=torch.float32, device=q.device)
    found = WithTangent(o, lse, torch.empty_like(o), torch.empty_like(lse))
    if problem.idle:
        found.lse.fill_(-torch.inf)
        for zero in (found.o, found.o_tangent, found.lse_tangent):
            zero.zero_()
        return found
    given = {"q": q, "k": k, "v": v, **asked._asdict()}
    del given["call"]
    tensors = {name: as_readable(t) for name, t in given.items()} | found._asdict()
    views = {name: TensorView.of(name, t) for name, t in tensors.items() if "lse" not in name}
    key = tuple((t.shape, t.stride(), t.dtype) for t in tensors.values())
    run_small(
        ("tangent", q.device, key, problem),
        index,
        lambda _: tangent_recipe(problem, views, arch, num_sms_of(index)),
        tensors,
        RESULTS,
    )
    return found
