# SPDX-License-Identifier: Apache-2.0
"""explain: report what `attention` would do with its arguments."""

from __future__ import annotations

from itertools import repeat
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad

from flash_attention.arch import MEASURED_ARCH, Arch, get_arch
from flash_attention.attention import Arguments, attention, read_arguments
from flash_attention.call.call import Call, with_keywords_of
from flash_attention.call.checks import check_call
from flash_attention.call.lengths import check_lengths
from flash_attention.call.options import check_switch
from flash_attention.call.tangent_call import (
    TangentProblem,
    check_has_tangent,
    views_with_tangents,
)
from flash_attention.choose.rules import choose
from flash_attention.errors import UnsupportedError, quoted
from flash_attention.families.config import KernelConfig
from flash_attention.families.gradients import check_differentiable
from flash_attention.families.padding import naming_padding, needs_padding, padded
from flash_attention.families.recipe import NO_DEVICE, Device, Setting
from flash_attention.kernel_configs import config_for
from flash_attention.launch.device import current_arch, device_arch, device_sms
from flash_attention.program.tangent import has_tangent
from flash_attention_workbench.explain.backward import explain_backward
from flash_attention_workbench.explain.decoding import Decoding
from flash_attention_workbench.explain.explanation import Explanation
from flash_attention_workbench.explain.gpus import Gpu, gpu_of_arch, gpu_of_device
from flash_attention_workbench.explain.launch import Launch
from flash_attention_workbench.explain.refusals import refusals_of, rule_of
from flash_attention_workbench.explain.user_function import explain_function
from flash_attention_workbench.explain.work import work_of

CPU = torch.device("cpu")
MAX_SMS = 1 << 16


@with_keywords_of(attention)
def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    arch: str | None = None,
    num_sms: int | None = None,
    gradients: bool = False,
    tangents: bool = False,
    **keywords: Any,
) -> Explanation:
    """Report which kernel `attention` would run for these arguments, why, and at what cost.

    The kernel is compiled, or found in the cache, but not loaded. Nothing runs on a GPU, and no
    tensor is allocated, except for padded copies if `attention` makes them.

    - `q`, `k`, `v` and the other keywords: as in `attention`. CUDA tensors are explained for their
      device; reading the lengths of their sequences waits for it. CPU and meta tensors are
      explained for `arch` and `num_sms`, or else for the current GPU, or else for an H200.
    - `arch`: the architecture, such as "sm_90".
    - `num_sms`: its number of multiprocessors.
    - `gradients`: explain the backward pass too. It is explained for the tensors that require
      grad, or for q, k, v and sinks if none does. If one does, it is explained anyway.
    - `tangents`: explain the call in forward mode, whose kernel computes the tangent of the output
      as well. A call of tensors that have tangents, as in torch.func.jvp, is explained so anyway.

    Returns an Explanation. Raises what `attention` would raise, with the same message.
    """
    told = read_arguments("explain", q, k, v, keywords)
    check_switch("gradients", gradients)
    check_switch("tangents", tangents)
    with naming_padding(told[0]):
        return _explained(told, arch, num_sms, bool(gradients), bool(tangents))


def _explained(
    told: Arguments, arch: str | None, num_sms: int | None, gradients: bool, tangents: bool
) -> Explanation:
    call, given, validate, backward = told
    if any(map(has_tangent, call[:3])):
        call, tangents = Call._make((*map(_primal, call[:3]), *call[3:])), True
    q, v = call.q, call.v
    call = padded(call) if needs_padding(q, v) else call
    trained = gradients or (torch.is_grad_enabled() and call.needs_grad())
    if trained:
        check_differentiable(call)
        call = call._replace(return_lse=True)
    problem, views = check_call(call, device=CPU)
    if tangents:
        check_has_tangent(call)
        problem, views = TangentProblem.of_pass(problem), views_with_tangents(views)
    config = None if given is None else config_for(given, problem, views)
    target, sms, gpu = _target(q.device, config, arch, num_sms)
    if validate and not q.is_meta:
        check_lengths(problem, call)
    known_sms = sms or 1  # on architectures without a measured GPU no kernel depends on it
    device = _device(q.device, gpu, asked_for=arch is not None or num_sms is not None)
    setting = Setting(target, known_sms, bool(call.return_lse), device=device)
    choice = choose(problem, setting, views, config=config, split_keys=call.split_keys)
    recipe = choice.recipe(problem, views)
    return Explanation(
        problem=problem,
        arch=target,
        num_sms=sms,
        gpu=gpu,
        torch_computes=q.is_cpu and config is None,
        config=choice.config,
        rule=rule_of(choice, problem),
        features=tuple(recipe.features.words()),
        refused=refusals_of(choice, problem, views, call.split_keys),
        launches=() if problem.idle else tuple(map(Launch.of, recipe.steps, repeat(target))),
        num_splits=recipe.num_splits,
        tiles=recipe.tiles,
        work=work_of(problem, call),
        function=None if problem.idle else explain_function(call, problem, choice.config, recipe),
        decoding=Decoding.of(choice, problem, views),
        backward=explain_backward(call, problem, views[:4], backward, setting) if trained else None,
    )


def _primal(tensor: Tensor) -> Tensor:
    """Return a tensor without its tangent and without transforms around it."""
    primal: Tensor = forward_ad.unpack_dual(tensor).primal
    while _functorch.is_gradtrackingtensor(primal):
        primal = _functorch.get_unwrapped(primal)
    return primal


def _target(
    device: torch.device, config: KernelConfig | None, arch: str | None, num_sms: int | None
) -> tuple[Arch, int | None, Gpu | None]:
    """Find the architecture, the number of multiprocessors and the GPU to explain a call for."""
    if num_sms is not None and (
        not isinstance(num_sms, Integral) or not 0 < int(num_sms) <= MAX_SMS
    ):
        raise UnsupportedError(
            f"num_sms is {quoted(num_sms)}; pass how many multiprocessors the GPU has, an int from"
            f" 1 to {MAX_SMS}"
        )
    if device.type == "cuda":
        if arch is not None or num_sms is not None:
            raise UnsupportedError(
                f"arch or num_sms is given, and the tensors are on {device}, which has its own;"
                ' leave them out, or pass meta tensors, q.to("meta")'
            )
        index = torch.cuda.current_device() if device.index is None else device.index
        return device_arch(index), device_sms(index), gpu_of_device(device)
    if arch is None and num_sms is None and torch.cuda.is_available():
        return _target(torch.device("cuda"), config, None, None)
    otherwise = MEASURED_ARCH if config is None else config.default_arch
    target = current_arch(otherwise) if arch is None else get_arch(arch)
    gpu = gpu_of_arch(target.name)
    if num_sms is None and gpu is not None:
        num_sms = gpu.num_sms
    return target, num_sms, gpu if gpu is not None and gpu.num_sms == num_sms else None


def _device(device: torch.device, gpu: Gpu | None, *, asked_for: bool) -> Device:
    """Find the device whose tables choose the config."""
    if device.type == "cuda" and device.index is not None:
        return device.index
    if torch.cuda.is_available() and not asked_for:
        return torch.cuda.current_device()
    return NO_DEVICE if gpu is None else gpu.name
