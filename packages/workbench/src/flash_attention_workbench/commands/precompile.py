# SPDX-License-Identifier: Apache-2.0
"""Compiling many kernels in parallel processes, which meet in the cache folder."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from flash_attention.arch import Arch
from flash_attention.call.backward_call import BackwardCall
from flash_attention.call.call import Call
from flash_attention.call.features import PLAIN, Features, MaskKind
from flash_attention.compile import compile_kernel
from flash_attention.compile.unit import Unit
from flash_attention.errors import FlashAttentionError, KernelConfigError
from flash_attention.families.config import KernelConfig
from flash_attention.families.passes import Pass
from flash_attention.families.registry import family_of
from flash_attention.launch.kernels import compile_config, load_unit
from flash_attention.launch.plan import Plan
from flash_attention_workbench.child import Note
from flash_attention_workbench.tune.compiling import Compilers
from flash_attention_workbench.tune.measurer import Failure

NOT_KEPT = "the cache folder cannot be written"
Fate = Literal["compiled", "from cache", "not kept", "not valid", "failed"]


@dataclass(frozen=True)
class Job:
    """One kernel to compile."""

    config: KernelConfig
    arch: Arch
    features: Features = PLAIN


@dataclass(frozen=True)
class Outcome:
    """What became of one job; `reason` is the broken rule or the error."""

    job: Job
    fate: Fate
    reason: str = ""


def jobs_of(config: KernelConfig, arch: Arch) -> list[Job]:
    """The kernels of a config, with the features that its family builds ahead of time."""
    return [Job(config, arch, features) for features in family_of(config).built_features()]


def precompile(jobs: Sequence[Job], processes: int) -> Generator[Outcome, None, None]:
    """Compiles every job, yielding each as it ends; when the caller wants no more, none goes on."""
    todo: dict[tuple[KernelConfig, Features, Arch], Job] = {}
    for job in jobs:
        if violation := job.config.broken_rule(job.arch):
            yield Outcome(job, "not valid", violation.rule)
        else:
            todo[job.config, job.features, job.arch] = job
    compilers = Compilers(min(processes, len(todo)), _compile)
    try:
        for key, outcome in compilers.answers(list(todo)):
            if isinstance(outcome, Failure):  # of the process
                yield Outcome(todo[key], "failed", outcome.reason)
            else:
                yield outcome
    finally:
        compilers.close()


def precompile_units(units: Sequence[Unit], processes: int) -> Generator[str, None, None]:
    """Compile translation units into the cache. Yields what went wrong with each, or nothing."""
    compilers = Compilers(min(processes, len(units)), _compile_unit)
    try:
        for _, outcome in compilers.answers([(unit,) for unit in units]):
            yield outcome.reason if isinstance(outcome, Failure) else outcome
    finally:
        compilers.close()


def _compile_unit(note: Note, unit: Unit) -> str:
    try:
        kernel = compile_kernel(unit.source, arch=unit.target, name=unit.name)
    except FlashAttentionError as error:
        return str(error)
    return "" if kernel.source_path else f"{unit.name} is not kept: {NOT_KEPT}"


def _compile(note: Note, config: KernelConfig, features: Features, arch: Arch) -> Outcome:
    job = Job(config, arch, features)
    try:
        compiled = compile_config(config, arch, features)
        beside = [load_unit(unit).compiled for unit in units_beside(job)]
    except KernelConfigError as error:
        return Outcome(job, "not valid", error.rule)
    except FlashAttentionError as error:
        return Outcome(job, "failed", str(error))
    if compiled.source_path is None:
        return Outcome(job, "not kept", NOT_KEPT)
    kept = all(one.compile_seconds is None for one in (compiled, *beside))
    return Outcome(job, "from cache" if kept else "compiled")


def units_beside(job: Job) -> list[Unit]:
    """The kernels that run before and after a kernel, for dense tensors."""
    family = family_of(job.config)
    companions = family.companions(job.config, job.arch)
    if family.pass_ is not Pass.BACKWARD:
        return companions
    shape = (1, 1, 1, job.config.d_head)
    like = torch.empty(shape, dtype=job.config.dtype.to_torch_dtype())
    causal = job.features.mask is MaskKind.CAUSAL
    call = Call(like, like, like, like.clone(), causal=causal)
    plan = Plan(BackwardCall(like, call, torch.empty(1, 1, 1)), job.config, job.arch)
    return [*(step.unit for step in plan.recipe.steps), *companions]
