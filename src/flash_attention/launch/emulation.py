# SPDX-License-Identifier: Apache-2.0
"""Kernels on CPU tensors: the emulator runs the PTX that would run on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import prod
from numbers import Integral
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flash_attention.call.any_call import AnyCall, forward_of
from flash_attention.call.backward_call import BackwardCall, Gradients
from flash_attention.call.call import Call
from flash_attention.call.options import check_switch
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.compile import CompiledKernel, compile_to_ptx
from flash_attention.compile.unit import Unit
from flash_attention.errors import LaunchError, UnsupportedError, quoted
from flash_attention.families.config import KernelConfig
from flash_attention.families.recipe import Recipe, Step
from flash_attention.families.traced_args import put_function
from flash_attention.launch.preparation import Preparation
from flash_attention.launch.programs import keep_code, program_of
from ptx_emulator import (
    SCHEDULES,
    Counters,
    DeadlockError,
    Finding,
    GlobalMemory,
    Program,
    RunResult,
    TensorMap,
    run,
)

CompileUnit = Callable[[Unit], CompiledKernel]
MEMORY_SLACK = 1 << 20  # bytes of address space between and around the tensors
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FINDINGS_SHOWN = 5
MAX_THREADS = 1 << 26  # per launch; each has a few kilobytes of state


@dataclass(frozen=True)
class Emulation:
    """The result of an emulated call: the output, the errors that were found, and the counters."""

    output: Tensor  # the result, `o` if it was given
    findings: tuple[Finding, ...]  # the errors that were found; empty if there are none
    counters: Counters  # of the attention kernel; the combine kernel of split-KV is not counted
    seconds: float  # of the emulation, without compiling and loading
    lse: Tensor | None = None  # float32 (batch, heads, seq_q), with return_lse
    max_scores: Tensor | None = None  # float32 (heads,), with return_max


@dataclass(frozen=True)
class BackwardEmulation:
    """The result of an emulated backward pass."""

    gradients: Gradients
    findings: tuple[Finding, ...]  # the errors that were found; empty if there are none
    counters: tuple[Counters, ...]  # of each kernel
    seconds: float  # of the emulation, without compiling and loading


@dataclass(frozen=True)
class Settings:
    """How to emulate: the order of the warps, the seed of a random order, whether to check."""

    schedule: str = "lockstep"
    seed: int = 0
    checks: bool = True

    def __post_init__(self) -> None:
        check_switch("checks", self.checks)
        if not isinstance(self.seed, Integral):
            raise UnsupportedError(f"seed is {quoted(self.seed)}; pass a whole number")
        if not isinstance(self.schedule, str) or self.schedule not in SCHEDULES:
            raise UnsupportedError(
                f"unknown schedule {quoted(self.schedule)}; choose from {', '.join(SCHEDULES)}"
            )


class Planned(Protocol):
    """What the emulator needs of a plan, which runs its calls on CPU tensors here."""

    @property
    def config(self) -> KernelConfig: ...
    @property
    def recipe(self) -> Recipe: ...
    @property
    def views(self) -> Sequence[TensorView]: ...
    @property
    def idle(self) -> bool: ...
    @property
    def problem(self) -> Problem: ...
    @property
    def preparation(self) -> Preparation[Any, Any]: ...
    def bind(self, call: AnyCall) -> Any: ...


@lru_cache(maxsize=64)
def compiled_unit(unit: Unit) -> CompiledKernel:
    """Compile a translation unit to PTX, which is all that the emulator needs."""
    return compile_to_ptx(unit.source, arch=unit.target, name=unit.name)


def emulate_checked(plan: Planned, call: AnyCall) -> Any:
    """Emulate a plan with all checks, and return its result. A finding raises LaunchError."""
    ran = emulate_any_plan(plan, call, Settings())
    if findings := ran.findings:
        raise LaunchError(
            f"the emulator found {len(findings)} errors in"
            f" {plan.config.short_form()}:\n{listed(findings)}"
        )
    if not isinstance(call, Call) or call.out is None:
        return ran.result
    if isinstance(ran.result, Tensor):
        return store(ran.result, call.out)
    return store(ran.result[0], call.out), *ran.result[1:]


def emulate_plan(
    plan: Planned,
    call: Call,
    settings: Settings,
    *,
    compile_unit: CompileUnit | None = None,
    smem_bytes: int | None = None,
) -> Emulation:
    """Run the kernels of a forward plan on copies of the call's tensors in the emulator's memory.
    The output is new. Tests that plant a mistake replace `compile_unit` and `smem_bytes`."""
    ran = emulate_any_plan(plan, call, settings, compile_unit, smem_bytes)
    output, *others = (ran.result,) if isinstance(ran.result, Tensor) else ran.result
    max_scores = others.pop() if call.return_max else None
    lse = others[0] if others else None
    counters = ran.counters[plan.recipe.main]
    return Emulation(output, ran.findings, counters, ran.seconds, lse, max_scores)


def emulate_backward_plan(
    plan: Planned, call: BackwardCall, settings: Settings, compile_unit: CompileUnit | None = None
) -> BackwardEmulation:
    """Run the kernels of a backward plan as `emulate_plan` runs those of a forward plan."""
    return BackwardEmulation(*emulate_any_plan(plan, call, settings, compile_unit))


class Emulated(NamedTuple):
    """What an emulated plan gave, whatever its pass."""

    result: Any  # as `Plan.run` returns it
    findings: tuple[Finding, ...]
    counters: tuple[Counters, ...]  # of each kernel
    seconds: float


def emulate_any_plan(
    plan: Planned,
    call: AnyCall,
    settings: Settings,
    compile_unit: CompileUnit | None = None,
    smem_bytes: int | None = None,
) -> Emulated:
    """Run the kernels of a plan of any pass as `emulate_plan` runs those of a forward plan."""
    arguments, steps = plan.bind(call), plan.recipe.steps
    kernels = [(compile_unit or compiled_unit)(step.unit) for step in steps]
    programs = list(map(program_of, kernels))
    if plan.idle:
        result = plan.preparation.result(
            {
                name: torch.empty_strided(view.shape, view.strides, dtype=view.dtype, device="cpu")
                for name, view in plan.preparation.outputs(plan.problem).items()
            }
        )
        plan.preparation.fill_idle(call, result)
        return Emulated(result, (), tuple(map(Counters, programs)), 0.0)
    for step in steps:
        _check_size(step)
    inputs, outputs = plan.preparation.inputs(call), plan.preparation.outputs(plan.problem)
    function = forward_of(call).function
    captured, sums = ((), ()) if function is None else (function.memory, function.sum_memory)
    read = (*inputs.values(), *captured)
    memory = GlobalMemory(_bytes_needed(plan.recipe, read, outputs) + MEMORY_SLACK)
    _allocate(plan, memory, arguments, inputs)
    addresses = _capture(memory, captured)
    if function is not None:
        put_function(arguments, function, addresses)
    start = time.perf_counter()
    named = plan.config.short_form()
    results = run_steps(steps, programs, memory, arguments, settings, named, smem_bytes=smem_bytes)
    seconds = time.perf_counter() - start
    for kernel, program in zip(kernels, programs, strict=True):
        keep_code(kernel, program)
    if (count := plan.recipe.counters) and settings.checks:
        _check_tile_counter(plan, memory.read(arguments.tile_counter, np.int32, (count,)))
    for address, tensor in zip(reversed(addresses), reversed(sums), strict=False):
        tensor.copy_(_read(memory, address, TensorView.of("gradient", tensor)))
    written = {
        name: _read(memory, getattr(arguments, name), view) for name, view in outputs.items()
    }
    return Emulated(
        plan.preparation.result(written),
        tuple(finding for result in results for finding in result.findings),
        tuple(result.counters for result in results),
        seconds,
    )


def run_steps(
    steps: Sequence[Step],
    programs: Sequence[Program],
    memory: GlobalMemory,
    arguments: Any,
    settings: Settings,
    named: str,
    *,
    smem_bytes: int | None = None,
) -> list[RunResult]:
    """Run kernels one after the other, with arguments that hold their addresses. `named` is the
    config in messages."""
    results = []
    for step, program in zip(steps, programs, strict=True):
        geometry = step.geometry
        own_smem = geometry.smem_bytes and (smem_bytes or geometry.smem_bytes)
        for name, value in step.values.items():
            setattr(arguments, name, value)
        try:
            result = run(
                program,
                memory,
                grid=geometry.grid,
                block=geometry.block,
                cluster=geometry.cluster,
                args=[*_maps(step, arguments), _declared(program, arguments)],
                dynamic_smem=own_smem,
                starts_early=step.starts_early,
                **asdict(settings),
            )
        except DeadlockError as deadlock:
            raise LaunchError(f"{named} does not end:\n{deadlock}") from deadlock
        results.append(result)
    return results


def _declared(program: Program, arguments: Any) -> bytes:
    """Return as many of the arguments as a kernel declares. Those of a user's function come last,
    and not all kernels have them."""
    return bytes(arguments)[: program.kernel.params[-1].size]


def emulate_small(
    recipe: Recipe, arguments: Any, tensors: Mapping[str, Tensor], written: Sequence[str]
) -> None:
    """Run kernels without a config on copies of tensors in the emulator's memory, and copy those
    that are `written` back. A finding raises LaunchError."""
    sizes = sum(span(tensor) * tensor.itemsize for tensor in tensors.values())
    memory = GlobalMemory(sizes + MEMORY_SLACK)
    for name, tensor in tensors.items():
        owned = elements(TensorView.of(name, tensor))
        address = memory.alloc(storage(tensor), name=name, owned=owned) if tensor.numel() else 0
        setattr(arguments, name, address)
    if count := recipe.counters:
        arguments.tile_counter = memory.alloc(np.zeros(count, np.int32), name="tile_counter")
    kernels = [compiled_unit(step.unit) for step in recipe.steps]
    programs = list(map(program_of, kernels))
    names = ", ".join(step.unit.name for step in recipe.steps)
    results = run_steps(recipe.steps, programs, memory, arguments, Settings(), names)
    for kernel, program in zip(kernels, programs, strict=True):
        keep_code(kernel, program)
    findings = [finding for result in results for finding in result.findings]
    if findings:
        raise LaunchError(
            f"the emulator found {len(findings)} errors in {names}:\n{listed(findings)}"
        )
    for name in written:
        tensor = tensors[name]
        if tensor.numel():
            view = TensorView.of(name, tensor)
            store(_read(memory, getattr(arguments, name), view), tensor)


def _check_size(step: Step) -> None:
    threads = prod(step.geometry.grid) * step.geometry.block
    if threads > MAX_THREADS:
        raise UnsupportedError(
            f"the launch has {threads:,} threads, and the emulator takes at most {MAX_THREADS:,};"
            " pass fewer queries, and a max_seqlen_q that is no more than the longest sequence"
        )


def _bytes_needed(
    recipe: Recipe, inputs: Iterable[Tensor], outputs: Mapping[str, TensorView]
) -> int:
    read = sum(span(tensor) * tensor.itemsize for tensor in inputs)
    written = sum(view.layout.span for view in outputs.values())
    return read + written + sum(recipe.scratch.values())


def _allocate(
    plan: Planned, memory: GlobalMemory, arguments: Any, inputs: Mapping[str, Tensor]
) -> None:
    """Copy the inputs to the emulator's memory, allocate the results, scratch memory and the tile
    counter, and store all addresses."""
    described = {view.name for view in plan.views} | {"d_o"}  # others have no gaps
    for name, tensor in inputs.items():
        owned = elements(TensorView.of(name, tensor)) if name in described else None
        setattr(arguments, name, memory.alloc(storage(tensor), name=name, owned=owned))
    initial = plan.preparation.initial
    for name, view in plan.preparation.outputs(plan.problem).items():
        if name in initial:
            filled = np.full(view.shape, initial[name], np.float32)
            setattr(arguments, name, memory.alloc(filled, name=name))
            continue
        gaps = elements(view)
        owned = None if gaps is None else gaps.repeat(view.dtype.itemsize)
        setattr(arguments, name, memory.alloc(nbytes=view.layout.span, name=name, owned=owned))
    for name, size in plan.recipe.scratch.items():
        setattr(arguments, name, memory.alloc(nbytes=size, name=name))
    if count := plan.recipe.counters:
        arguments.tile_counter = memory.alloc(np.zeros(count, np.int32), name="tile_counter")


def _capture(memory: GlobalMemory, tensors: Sequence[Tensor]) -> list[int]:
    """Copy captured tensors to the emulator's memory, and return their addresses."""
    named = (TensorView.of(f"captured tensor {slot}", each) for slot, each in enumerate(tensors))
    return [
        memory.alloc(storage(each), name=view.name, owned=elements(view))
        for each, view in zip(tensors, named, strict=True)
    ]


def _read(memory: GlobalMemory, address: int, view: TensorView) -> Tensor:
    stored = torch.from_numpy(memory.read(address, np.uint8, (view.layout.span,)))
    return stored.view(view.dtype).as_strided(view.shape, view.strides)


def _maps(step: Step, arguments: Any) -> list[TensorMap]:
    """Make the emulator's tensor maps for a kernel."""
    return [
        TensorMap(
            *(getattr(arguments, name), each.dims, each.strides, each.box),
            element_bytes=each.dtype.itemsize,
            swizzle=each.swizzle,
            steps=each.steps,
        )
        for name, each in step.maps.items()
    ]


def _check_tile_counter(plan: Planned, left: NDArray[np.int32]) -> None:
    if left.any():
        raise LaunchError(
            f"{plan.config.short_form()} leaves {left.tolist()} in its tile counter; it must leave"
            " zeros, which the next launch starts from"
        )


def storage(tensor: Tensor) -> NDArray[np.integer[Any]]:
    """Return the memory from a tensor's first element to its last, including gaps."""
    flat = tensor.detach().as_strided((span(tensor),), (1,))
    words: NDArray[np.integer[Any]] = flat.view(_WORDS[tensor.itemsize]).numpy()
    return words


def span(tensor: Tensor) -> int:
    """Count the elements from the first to the last, including gaps."""
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def elements(view: TensorView) -> NDArray[np.bool_] | None:
    """Mark the elements in the memory that a view spans. Returns None if it has no gaps."""
    places = view.layout.span // view.dtype.itemsize
    if places == prod(view.shape):
        return None
    mask = torch.zeros(places, dtype=torch.bool, device="cpu")
    mask.as_strided(view.shape, view.strides).fill_(True)
    taken: NDArray[np.bool_] = mask.numpy()
    return taken


def store(output: Tensor, o: Tensor) -> Tensor:
    with torch.inference_mode(o.is_inference()):
        return o.copy_(output)


def listed(findings: Sequence[Finding]) -> str:
    shown = [f"  {finding}" for finding in findings[:_FINDINGS_SHOWN]]
    more = len(findings) - len(shown)
    return "\n".join(shown + ([f"  and {more} more"] if more else []))
