# SPDX-License-Identifier: Apache-2.0
"""Compiling many kernels in parallel processes, which meet in the cache folder."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Literal

from flash_attention.arch import Arch
from flash_attention.call.features import PLAIN, Features
from flash_attention.errors import FlashAttentionError, KernelConfigError
from flash_attention.families.config import KernelConfig
from flash_attention.families.registry import family_of
from flash_attention.launch.kernels import compile_config

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


def precompile(jobs: Sequence[Job], processes: int) -> Iterator[Outcome]:
    """Compiles every job, yielding each as it ends."""
    todo: list[Job] = []
    for job in jobs:
        if violation := job.config.broken_rule(job.arch):
            yield Outcome(job, "not valid", violation.rule)
        else:
            todo.append(job)
    if not todo:
        return
    with ProcessPoolExecutor(
        max_workers=min(processes, len(todo)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_stay_quiet,
    ) as pool:
        try:
            for future in as_completed([pool.submit(_compile, job) for job in todo]):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _compile(job: Job) -> Outcome:
    try:
        compiled = compile_config(job.config, job.arch, job.features)
    except KernelConfigError as error:
        return Outcome(job, "not valid", error.rule)
    except FlashAttentionError as error:
        return Outcome(job, "failed", str(error))
    if compiled.source_path is None:
        return Outcome(job, "not kept", "the cache folder cannot be written")
    return Outcome(job, "from cache" if compiled.compile_seconds is None else "compiled")


def _stay_quiet() -> None:
    logging.getLogger("flash_attention").setLevel(logging.WARNING)
