# SPDX-License-Identifier: Apache-2.0
"""Kernels on CPU tensors: the PTX that would run on a GPU, run by the emulator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flash_attention.arch import get_arch
from flash_attention.call.call import NO_EXTRAS, Extras, Options, Window, extras_of
from flash_attention.call.tensors import TensorView
from flash_attention.compile import ENTRY
from flash_attention.emulator import (
    SCHEDULES,
    Counters,
    DeadlockError,
    Finding,
    GlobalMemory,
    Program,
    TensorMap,
    load_program,
    run,
)
from flash_attention.errors import LaunchError, UnsupportedError
from flash_attention.families.forward_args import ForwardKernelArgs
from flash_attention.families.sm90.forward.splits import COMBINE_THREADS
from flash_attention.kernel_configs import KernelConfig
from flash_attention.launch.kernels import compile_config
from flash_attention.launch.plan import CPU, LaunchPlan, fill_keyless, new_plan

_MEMORY_SLACK = 1 << 20  # bytes of address space between and around the tensors
_FINDINGS_SHOWN = 5


@dataclass(frozen=True)
class Emulation:
    """What an emulated kernel computed, what was wrong on the way, and what it did."""

    output: Tensor
    findings: tuple[Finding, ...]
    counters: Counters  # without those of combining parts, where keys are in chunks
    seconds: float  # of the run; compiling and loading not counted
    lse: Tensor | None = None  # float32 (batch, heads, seq_q), if asked for


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
    kernel_cfg: KernelConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
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
    arch: str | None = None,
    schedule: str = "lockstep",
    seed: int = 0,
    checks: bool = True,
) -> Emulation:
    """`forward` without a GPU: CPU tensors, the kernel compiled for `arch` and emulated.

    `arch` is the default one of the config's family unless given. `schedule` is the order in which
    warps advance: "lockstep", "depth-first", or "random" with a `seed`. With `checks` off nothing
    is looked for, and the run takes about half the time. A deadlock raises LaunchError.
    """
    settings = Settings(schedule, seed, checks)
    limits = (max_seqlen_q, max_seqlen_k, split_keys)
    options = Options(causal, window, softmax_scale, softcap, return_lse, *limits)
    extras = extras_of(sinks, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table)
    target = None if arch is None else get_arch(arch)
    plan = new_plan(kernel_cfg, q, k, v, o, target, options=options, extras=extras)
    if plan.device_index != CPU:
        raise UnsupportedError(
            f"q is on {q.device}; the emulator takes CPU tensors, move them with q.cpu(), or call"
            " forward to run on the GPU"
        )
    emulation = _emulate(plan, q, k, v, o, extras, settings)
    return emulation if o is None else replace(emulation, output=_store(emulation.output, o))


def emulate_checked(
    plan: LaunchPlan, q: Tensor, k: Tensor, v: Tensor, o: Tensor | None, extras: Extras
) -> tuple[Tensor, Tensor | None]:
    """Output, stored in `o` if given, and lse of a plan's kernel; a finding raises LaunchError."""
    emulation = _emulate(plan, q, k, v, o, extras, Settings())
    if emulation.findings:
        raise LaunchError(
            f"the emulator found {len(emulation.findings)} errors in"
            f" {plan.config.short_form()}:\n{_listed(emulation.findings)}"
        )
    return emulation.output if o is None else _store(emulation.output, o), emulation.lse


def _emulate(
    plan: LaunchPlan,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None,
    extras: Extras,
    settings: Settings,
) -> Emulation:
    args = plan.bind(q, k, v, o, extras=extras)
    ptx = compile_config(plan.config, plan.arch, plan.features).ptx
    return emulate_args(plan, args, ptx, (q, k, v), settings, extras=extras)


def emulate_args(
    plan: LaunchPlan,
    args: ForwardKernelArgs,
    ptx: str,
    inputs: Sequence[Tensor],
    settings: Settings,
    *,
    extras: Extras = NO_EXTRAS,
    smem_bytes: int | None = None,
) -> Emulation:
    """Run `ptx` as the kernel of `plan` on q, k and v; `args` came from `plan.bind`.

    The addresses in `args` are replaced by those of copies in the emulator's memory. The output is
    a new tensor with the strides that the plan knows of.
    """
    program = load_program(ptx, ENTRY)
    if plan.idle:
        return _nothing_to_run(plan, program, extras)
    memory = GlobalMemory(_bytes_needed(plan, extras) + _MEMORY_SLACK)
    _allocate(plan, memory, args, inputs, extras)
    start = time.perf_counter()
    try:
        result = run(
            program,
            memory,
            grid=plan.geometry.grid,
            block=plan.geometry.block,
            args=[*_maps(plan, args), args],
            dynamic_smem=plan.geometry.smem_bytes if smem_bytes is None else smem_bytes,
            **asdict(settings),
        )
    except DeadlockError as deadlock:
        raise LaunchError(f"{plan.config.short_form()} does not end:\n{deadlock}") from deadlock
    findings = [*result.findings, *_combine(plan, memory, args, settings)]
    seconds = time.perf_counter() - start
    if plan.counts_tiles and settings.checks:
        _check_tile_counter(plan, memory.read(args.tile_counter, np.int32, (2,)))
    view = plan.views[3]
    stored = torch.from_numpy(memory.read(args.o, np.uint8, (view.layout.span,)))
    output = stored.view(view.dtype).as_strided(view.shape, view.strides)
    output = output if plan.problem.total_q is None else output[0]
    lse = None
    if plan.return_lse:
        lse = torch.from_numpy(memory.read(args.lse, np.float32, plan.problem.lse_shape))
    return Emulation(output, tuple(findings), result.counters, seconds, lse)


def _combine(
    plan: LaunchPlan, memory: GlobalMemory, args: ForwardKernelArgs, settings: Settings
) -> list[Finding]:
    """Run the kernel that combines the parts, where keys are in chunks; what was wrong with it."""
    if plan.combine is None:
        return []
    compiled = plan.combine.kernel().compiled
    program = load_program(compiled.ptx, ENTRY)
    result = run(
        program,
        memory,
        grid=plan.combine.grid,
        block=COMBINE_THREADS,
        args=[args],
        **asdict(settings),
    )
    return result.findings


def _bytes_needed(plan: LaunchPlan, extras: Extras) -> int:
    tensors = sum(view.layout.span for view in plan.views)
    parts = sum(_part_bytes(plan).values())
    given = sum(_span(t) * t.itemsize for t in extras.given().values())
    return tensors + 4 * prod(plan.problem.lse_shape) + parts + given


def _part_bytes(plan: LaunchPlan) -> dict[str, int]:
    """The memory of parts, by the name of its address."""
    if plan.combine is None:
        return {}
    return {"o_parts": plan.combine.output_bytes, "lse_parts": plan.combine.lse_bytes}


def _allocate(
    plan: LaunchPlan,
    memory: GlobalMemory,
    args: ForwardKernelArgs,
    inputs: Sequence[Tensor],
    extras: Extras,
) -> None:
    """Put the inputs in the emulator's memory, make room for the results, note the addresses."""
    for name, tensor, view in zip("qkv", inputs, plan.views, strict=False):
        setattr(args, name, memory.alloc(_storage(tensor), name=name, owned=_elements(view)))
    view = plan.views[3]
    gaps = _elements(view)
    owned = None if gaps is None else gaps.repeat(view.dtype.itemsize)
    args.o = memory.alloc(nbytes=view.layout.span, name="o", owned=owned)
    if plan.return_lse:
        args.lse = memory.alloc(nbytes=4 * prod(plan.problem.lse_shape), name="lse")
    for name, tensor in extras.given().items():
        dense = tensor.detach().as_strided((_span(tensor),), (1,))
        setattr(args, name, memory.alloc(dense.numpy(), name=name))
    for name, size in _part_bytes(plan).items():
        setattr(args, name, memory.alloc(nbytes=size, name=name))
    if plan.counts_tiles:
        args.tile_counter = memory.alloc(np.zeros(2, np.int32), name="tile_counter")


def _maps(plan: LaunchPlan, args: ForwardKernelArgs) -> list[TensorMap]:
    addresses = (args.q, args.k, args.v, args.o)
    return [
        maps.description.emulated(address)
        for maps, address in zip(plan.maps, addresses, strict=False)
    ]


def _nothing_to_run(plan: LaunchPlan, program: Program, extras: Extras) -> Emulation:
    """No query, or no key that one could see."""
    view = plan.views[3]
    output = torch.empty_strided(view.shape, view.strides, dtype=view.dtype).zero_()
    output = output if plan.problem.total_q is None else output[0]
    lse = None
    if plan.return_lse:
        lse = fill_keyless(torch.empty(plan.problem.lse_shape, dtype=torch.float32), extras.sinks)
    return Emulation(output, (), Counters(program), 0.0, lse)


def _check_tile_counter(plan: LaunchPlan, left: NDArray[np.int32]) -> None:
    if left.any():
        raise LaunchError(
            f"{plan.config.short_form()} leaves {left.tolist()} in its tile counter; it must leave"
            " zeros, which the next launch starts from"
        )


def _storage(tensor: Tensor) -> NDArray[np.int16]:
    """The memory from a tensor's first element to its last, gaps included."""
    flat = tensor.detach().as_strided((_span(tensor),), (1,))
    words: NDArray[np.int16] = flat.view(torch.int16).numpy()
    return words


def _span(tensor: Tensor) -> int:
    """Elements from the first to the last, gaps included."""
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


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
