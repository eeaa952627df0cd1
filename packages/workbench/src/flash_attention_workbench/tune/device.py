# SPDX-License-Identifier: Apache-2.0
"""The measurers of a GPU: one whose kernels run in a child, one in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from flash_attention.arch import Arch
from flash_attention.choose.dense import DenseProblem
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import KernelConfig
from flash_attention_workbench.child import Child, ChildLostError
from flash_attention_workbench.cores import usable_cores
from flash_attention_workbench.tune.compiling import Compilers, Job, compile_job
from flash_attention_workbench.tune.measurer import Compiled, Failure
from flash_attention_workbench.tune.timed import forget_tensors, time_lineup

Answers = dict[KernelConfig, float | Failure]


def compilers() -> int:
    """Kernels to compile at a time: the core that times, and the one that waits, stay free."""
    return max(1, usable_cores() - 2)


class ChildMeasurer:
    """Compiles in children and times in another, which a bad kernel takes down alone."""

    def __init__(self, arch: Arch, device_index: int) -> None:
        self._arch = arch
        self._device_index = device_index
        self._compilers = Compilers(compilers(), compile_job)
        self._child = Child()

    def compile(self, problem: DenseProblem, configs: Sequence[KernelConfig]) -> None:
        self._compilers.submit(self._jobs(problem, configs))

    def compiled(
        self, problem: DenseProblem, configs: Sequence[KernelConfig]
    ) -> Iterator[tuple[KernelConfig, Compiled | Failure]]:
        for (config, _, _), answer in self._compilers.answers(self._jobs(problem, configs)):
            yield config, answer

    def _jobs(self, problem: DenseProblem, configs: Sequence[KernelConfig]) -> list[Job]:
        return [(config, problem.compiled_for(config), self._arch) for config in configs]

    def time(
        self, problem: DenseProblem, configs: Sequence[KernelConfig], *, repeats: int, check: bool
    ) -> Mapping[KernelConfig, float | Failure]:
        def call(lineup: Sequence[KernelConfig]) -> Answers:
            arguments = (problem, lineup, self._device_index, repeats, check)
            answers: Answers = self._child.call(time_lineup, *arguments)
            return answers

        return time_without_the_lost(call, configs)

    def seconds(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        self._compilers.close()
        self._child.kill()


def time_without_the_lost(
    call: Callable[[Sequence[KernelConfig]], Answers], configs: Sequence[KernelConfig]
) -> Answers:
    """Times a lineup again without each config that took the child down.

    A config is known by the note before its first run. Where the child was lost later, among the
    timed runs, every config is tried alone, and those that are lost alone are out. A loss that none
    of them explains, of an idle child say, is forgiven once.
    """
    answers: Answers = {}
    left, forgiven = list(configs), False
    while left:
        try:
            return {**answers, **call(left)}
        except ChildLostError as lost:
            out = _to_blame(call, left, lost)
            if not out and not forgiven:
                forgiven = True
                continue
            if lost.note is None:
                raise UnsupportedError(
                    f"the process that times kernels is lost before it runs one: {lost}"
                ) from lost
            out = out or left  # each is well by itself, and together they are not
            answers.update({config: Failure(lost.fate, str(lost)) for config in out})
            left = [config for config in left if config not in out]
    return answers


def _to_blame(
    call: Callable[[Sequence[KernelConfig]], Answers],
    configs: Sequence[KernelConfig],
    lost: ChildLostError,
) -> list[KernelConfig]:
    """Whom a loss is due to; nobody, if no kernel ran."""
    if lost.note is None:
        return []
    named = [config for config in configs if config.short_form() == lost.note]
    return named or _lost_alone(call, configs)


def _lost_alone(
    call: Callable[[Sequence[KernelConfig]], Answers], configs: Sequence[KernelConfig]
) -> list[KernelConfig]:
    out = []
    for config in configs:
        try:
            call([config])
        except ChildLostError:
            out.append(config)
    return out


class InProcessMeasurer:
    """Compiles in threads and times in this process, for a program that is at work here."""

    def __init__(self, arch: Arch, device_index: int) -> None:
        self._arch = arch
        self._device_index = device_index
        self._pool = ThreadPoolExecutor(compilers())
        self._jobs: dict[tuple[DenseProblem, KernelConfig], Future[Compiled | Failure]] = {}

    def compile(self, problem: DenseProblem, configs: Sequence[KernelConfig]) -> None:
        for config in configs:
            if (problem, config) not in self._jobs:
                self._jobs[problem, config] = self._pool.submit(
                    compile_job, _unheard, config, problem.compiled_for(config), self._arch
                )

    def compiled(
        self, problem: DenseProblem, configs: Sequence[KernelConfig]
    ) -> Iterator[tuple[KernelConfig, Compiled | Failure]]:
        self.compile(problem, configs)
        config_of = {self._jobs[problem, config]: config for config in configs}
        for future in as_completed(config_of):
            yield config_of[future], future.result()

    def time(
        self, problem: DenseProblem, configs: Sequence[KernelConfig], *, repeats: int, check: bool
    ) -> Mapping[KernelConfig, float | Failure]:
        return time_lineup(_unheard, problem, configs, self._device_index, repeats, check)

    def seconds(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        forget_tensors()


def _unheard(value: object) -> None:
    """A note that nobody waits for."""
