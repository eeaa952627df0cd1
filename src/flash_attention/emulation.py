# SPDX-License-Identifier: Apache-2.0
"""Kernels on CPU tensors: the PTX that would run on a GPU, run by the emulator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flash_attention.arch import DEFAULT_ARCH, get_arch
from flash_attention.checks import TensorView
from flash_attention.compiler import ENTRY
from flash_attention.dispatch import compile_config
from flash_attention.emulator import (
    SCHEDULES,
    Counters,
    DeadlockError,
    Finding,
    GlobalMemory,
    load_program,
    run,
)
from flash_attention.errors import LaunchError, UnsupportedError
from flash_attention.kernel_args import ForwardKernelArgs
from flash_attention.kernel_configs import FlashForwardKernelConfig
from flash_attention.launch import CPU, LaunchPlan, new_plan

_MEMORY_SLACK = 1 << 20  # bytes of address space between and around the tensors
_FINDINGS_SHOWN = 5


@dataclass(frozen=True)
class Emulation:
    """What an emulated kernel computed, what was wrong on the way, and what it did."""

    output: Tensor
    findings: tuple[Finding, ...]
    counters: Counters
    seconds: float  # of the run; compiling and loading not counted


@dataclass(frozen=True)
class Settings:
    """How to emulate: the order of the warps, its seed, and whether to look for errors."""

    schedule: str = "lockstep"
    seed: int = 0
    checks: bool = True

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise UnsupportedError(
                f"unknown schedule {self.schedule!r}; choose from {', '.join(SCHEDULES)}"
            )


def emulate(
    kernel_cfg: FlashForwardKernelConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    arch: str = DEFAULT_ARCH.name,
    schedule: str = "lockstep",
    seed: int = 0,
    checks: bool = True,
) -> Emulation:
    """`forward` without a GPU: CPU tensors, the kernel compiled for `arch` and emulated.

    `schedule` is the order in which warps advance: "lockstep", "depth-first", or "random" with a
    `seed`. With `checks` off nothing is looked for, and the run takes about half the time. A
    deadlock raises LaunchError.
    """
    settings = Settings(schedule, seed, checks)
    target = get_arch(arch)
    plan = new_plan(kernel_cfg, q, k, v, o, target)
    if plan.device_index != CPU:
        raise UnsupportedError(
            f"q is on {q.device}; the emulator takes CPU tensors, move them with q.cpu(), or call"
            " forward to run on the GPU"
        )
    args = plan.bind(q, k, v, o)
    ptx = compile_config(kernel_cfg, target).ptx
    emulation = emulate_args(plan, args, ptx, (q, k, v), settings)
    return emulation if o is None else replace(emulation, output=_store(emulation.output, o))


def emulate_checked(plan: LaunchPlan, q: Tensor, k: Tensor, v: Tensor, o: Tensor | None) -> Tensor:
    """The output of a plan's kernel, stored in `o` if given; a finding raises LaunchError."""
    args = plan.bind(q, k, v, o)
    ptx = compile_config(plan.config, DEFAULT_ARCH).ptx
    emulation = emulate_args(plan, args, ptx, (q, k, v), Settings())
    if emulation.findings:
        raise LaunchError(
            f"the emulator found {len(emulation.findings)} errors in"
            f" {plan.config.short_form()}:\n{_listed(emulation.findings)}"
        )
    return emulation.output if o is None else _store(emulation.output, o)


def emulate_args(
    plan: LaunchPlan,
    args: ForwardKernelArgs,
    ptx: str,
    inputs: Sequence[Tensor],
    settings: Settings,
    *,
    smem_bytes: int | None = None,
) -> Emulation:
    """Run `ptx` as the kernel of `plan` on q, k and v; `args` came from `plan.bind`.

    The addresses in `args` are replaced by those of copies in the emulator's memory. The output is
    a new tensor with the strides that the plan knows of.
    """
    spans = [view.layout.span for view in plan.views]
    memory = GlobalMemory(sum(spans) + _MEMORY_SLACK)
    for name, tensor, view in zip("qkv", inputs, plan.views, strict=False):
        setattr(args, name, memory.alloc(_storage(tensor), name=name, owned=_elements(view)))
    gaps = _elements(plan.views[3])
    owned = None if gaps is None else gaps.repeat(plan.views[3].dtype.itemsize)
    args.o = address = memory.alloc(nbytes=spans[3], name="o", owned=owned)
    program = load_program(ptx, ENTRY)
    start = time.perf_counter()
    try:
        result = run(
            program,
            memory,
            grid=plan.geometry.grid,
            block=plan.geometry.block,
            args=[args],
            dynamic_smem=plan.geometry.smem_bytes if smem_bytes is None else smem_bytes,
            schedule=settings.schedule,
            seed=settings.seed,
            checks=settings.checks,
        )
    except DeadlockError as deadlock:
        raise LaunchError(f"{plan.config.short_form()} does not end:\n{deadlock}") from deadlock
    seconds = time.perf_counter() - start
    view = plan.views[3]
    stored = torch.from_numpy(memory.read(address, np.uint8, (spans[3],)))
    output = stored.view(view.dtype).as_strided(view.shape, view.strides)
    return Emulation(output, tuple(result.findings), result.counters, seconds)


def _storage(tensor: Tensor) -> NDArray[np.int16]:
    """The memory from a tensor's first element to its last, gaps included."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    words: NDArray[np.int16] = (
        tensor.detach().as_strided((last + 1,), (1,)).view(torch.int16).numpy()
    )
    return words


def _elements(view: TensorView) -> NDArray[np.bool_] | None:
    """Which places from the first element of a view to its last hold one; None if all do."""
    places = view.layout.span // view.dtype.itemsize
    if places == prod(view.shape):
        return None
    mask = torch.zeros(places, dtype=torch.bool)
    mask.as_strided(view.shape, view.strides).fill_(True)
    taken: NDArray[np.bool_] = mask.numpy()
    return taken


def _store(output: Tensor, o: Tensor) -> Tensor:
    with torch.inference_mode(o.is_inference()):
        return o.copy_(output)


def _listed(findings: Sequence[Finding]) -> str:
    shown = [f"  {finding}" for finding in findings[:_FINDINGS_SHOWN]]
    more = len(findings) - len(shown)
    return "\n".join(shown + ([f"  and {more} more"] if more else []))
