# SPDX-License-Identifier: Apache-2.0
"""explain: the arguments of `attention`, and what it would do with them."""

from __future__ import annotations

from math import prod
from numbers import Integral

import torch
from torch import Tensor

from flash_attention.arch import Arch, get_arch
from flash_attention.call.call import Window, extras_of, options_of
from flash_attention.call.features import Features
from flash_attention.call.lengths import check_lengths
from flash_attention.call.problem import Geometry, Problem
from flash_attention.call.tensors import check_config_type
from flash_attention.choose.decision import Decision, Rule, check_call, decide
from flash_attention.choose.heuristic import SHORT
from flash_attention.choose.tables import NO_DEVICE, Device
from flash_attention.errors import UnsupportedError
from flash_attention.families.sm90.forward.config import HOPPER, WARPGROUP_ROWS
from flash_attention.families.sm90.forward.splits import COMBINE_THREADS
from flash_attention.kernel_configs import HopperForwardKernelConfig, KernelConfig
from flash_attention.launch.kernels import (
    current_arch,
    device_arch,
    device_sms,
    get_combine_kernel,
    get_kernel,
)
from flash_attention.tools.explain.explanation import Explanation, Launch
from flash_attention.tools.explain.gpus import Gpu, gpu_of_arch, gpu_of_device
from flash_attention.tools.explain.refusals import refusals_of
from flash_attention.tools.explain.work import work_of

CPU = torch.device("cpu")


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: Window | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    split_keys: int | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
    config: KernelConfig | None = None,
    validate: bool = False,
    arch: str | None = None,
    num_sms: int | None = None,
) -> Explanation:
    """What `attention` would do with these arguments: which kernel, why, and at what cost.

    The kernel is compiled or found in the cache, not loaded; nothing runs on a GPU, no tensor is
    made. CUDA tensors are explained for their device; the lengths of their entries are read, which
    waits for it. Others are for `arch`, such as "sm_90", with `num_sms` multiprocessors, else for
    the current GPU or an H200. What `attention` refuses is refused here with the same message.
    """
    options = options_of(
        (causal, window, softmax_scale, softcap, return_lse, max_seqlen_q, max_seqlen_k, split_keys)
    )
    extras = extras_of(sinks, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table)
    if config is not None:
        check_config_type(config)
    problem, views = check_call(q, k, v, out, options, extras, device=CPU)
    target, sms, gpu = _target(q.device, config, arch, num_sms)
    if validate and not q.is_meta:
        check_lengths(problem, extras)
    known_sms = sms or 1  # no kernel of an architecture without a measured GPU depends on it
    device = _device(q.device, gpu, asked_for=arch is not None or num_sms is not None)
    decision = decide(config, problem, views, options, target, known_sms, device)
    features = decision.features(problem, return_lse)
    return Explanation(
        problem=problem,
        arch=target,
        num_sms=sms,
        gpu=gpu,
        torch_computes=q.is_cpu and config is None,
        config=decision.config,
        rule=_rule(decision, problem),
        features=tuple(features.words()),
        refused=refusals_of(decision, problem, views, options, known_sms),
        launches=() if problem.idle else _launches(decision, problem, features, known_sms),
        chunks=_chunks(decision, problem),
        tiles=_tiles(decision, problem, known_sms),
        work=work_of(problem, extras),
    )


def _target(
    device: torch.device, config: KernelConfig | None, arch: str | None, num_sms: int | None
) -> tuple[Arch, int | None, Gpu | None]:
    """The architecture, the multiprocessors and the GPU that a call is explained for."""
    if num_sms is not None and (not isinstance(num_sms, Integral) or int(num_sms) < 1):
        raise UnsupportedError(
            f"num_sms is {num_sms!r}; pass how many multiprocessors the GPU has, a positive int"
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
    otherwise = HOPPER if config is None else config.default_arch
    target = current_arch(otherwise) if arch is None else get_arch(arch)
    gpu = gpu_of_arch(target.name)
    if num_sms is None and gpu is not None:
        num_sms = gpu.num_sms
    return target, num_sms, gpu if gpu is not None and gpu.num_sms == num_sms else None


def _device(device: torch.device, gpu: Gpu | None, *, asked_for: bool) -> Device:
    """The device whose tables a call is explained by."""
    if device.type == "cuda" and device.index is not None:
        return device.index
    if torch.cuda.is_available() and not asked_for:
        return torch.cuda.current_device()
    return NO_DEVICE if gpu is None else gpu.name


def _rule(decision: Decision, problem: Problem) -> str:
    """What chose the config, and what it looked at."""
    rule: str = decision.rule.value
    if decision.rule is Rule.GIVEN:
        return rule
    if decision.rule is Rule.TABLE:
        return f"{rule}: {decision.reason}"
    if decision.rule is Rule.SHORT_QUERIES:
        rows = problem.seq_q * problem.heads_per_kv
        why = f"{rows} rows that share a head of k and v fit in the {WARPGROUP_ROWS} of a warpgroup"
    else:
        masked = problem.causal or problem.window is not None
        mask, length = "masked" if masked else "full", "up to" if problem.seq_q <= SHORT else "over"
        why = f"d_head {decision.config.d_head}, {mask}, {length} {SHORT} queries"
    return f"{rule}: {why}"


def _tiles(decision: Decision, problem: Problem, num_sms: int) -> int:
    config = decision.config
    if not isinstance(config, HopperForwardKernelConfig):
        return prod(Geometry.of(config, problem, num_sms).grid)
    if decision.chunks is None:
        return problem.num_tiles(config.B_r)
    return decision.chunks.num_tiles(problem, config.consumers)


def _chunks(decision: Decision, problem: Problem) -> int:
    config, chunks = decision.config, decision.chunks
    if not isinstance(config, HopperForwardKernelConfig) or chunks is None or not chunks.in_parts:
        return 0
    return chunks.num_ctas(problem, config.consumers)


def _launches(
    decision: Decision, problem: Problem, features: Features, num_sms: int
) -> tuple[Launch, ...]:
    """The kernel, and the one that combines parts where keys are in chunks. Compiles both."""
    config, arch, chunks = decision.config, decision.arch, decision.chunks
    geometry = Geometry.of(config, problem, num_sms, chunks)
    compiled = get_kernel(config, arch, features).compiled
    forward = Launch.of(compiled, arch, geometry.grid, geometry.block, geometry.smem_bytes)
    if not isinstance(config, HopperForwardKernelConfig) or chunks is None or not chunks.in_parts:
        return (forward,)
    combine = get_combine_kernel(config, chunks, config.target(arch)).compiled
    grid = (chunks.combine_grid(problem), 1, 1)
    return forward, Launch.of(combine, arch, grid, COMBINE_THREADS, 0)
