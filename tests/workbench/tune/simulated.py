# SPDX-License-Identifier: Apache-2.0
"""The seconds that tuning takes on an H200 with 16 cores: compilers at work beside the GPU."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flash_attention.choose.dense import DenseProblem
from flash_attention.kernel_configs import KernelConfig
from flash_attention_workbench.tune.kernels import CompiledFor
from flash_attention_workbench.tune.measurer import Compiled, Failure
from tests.workbench.tune.made_up import MadeUpMeasurer, true_time

Job = tuple[KernelConfig, CompiledFor]


@dataclass(frozen=True)
class Costs:
    """Seconds; of a kernel itself by its FLOP."""

    start: float = 8.0  # of a child
    compile: float = 1.3
    processes: int = 14
    first_run: float = 0.012  # machine code loaded, one run waited for
    sample: float = 0.0007  # besides two runs of the kernel
    oracle: float = 0.3
    judge: float = 0.15
    flop_per_s: float = 5e14


class SimulatedMachine(MadeUpMeasurer):
    """Compiles so many kernels at a time while it times, what is waited for first."""

    def __init__(self, costs: Costs) -> None:
        super().__init__()
        self.costs = costs
        self.waited = 0.0  # for a compiler
        self._free = [costs.start] * costs.processes  # when each compiler is
        self._queue: deque[Job] = deque()
        self._done: dict[Job, float] = {}
        self._child_started = False

    def compile(self, problem: DenseProblem, configs: Sequence[KernelConfig]) -> None:
        self._queue.extend((config, problem.compiled_for(config)) for config in configs)

    def compiled(
        self, problem: DenseProblem, configs: Sequence[KernelConfig]
    ) -> Iterator[tuple[KernelConfig, Compiled | Failure]]:
        waiting = {(config, problem.compiled_for(config)): config for config in configs}
        asked = list(waiting)
        self._go_on()
        self._queue.extendleft(reversed(asked))
        try:
            while waiting:
                self._go_on()
                started = {job: self._done[job] for job in waiting if job in self._done}
                if ready := [job for job, at in started.items() if at <= self.now]:
                    yield waiting.pop(ready[0]), Compiled(168, 0)
                    continue
                soonest = min((*started.values(), *(self._free[:1] if self._queue else ())))
                self.waited += soonest - self.now
                self.now = soonest
        finally:
            self._queue = deque(job for job in self._queue if job not in asked)

    def time(
        self, problem: DenseProblem, configs: Sequence[KernelConfig], *, repeats: int, check: bool
    ) -> Mapping[KernelConfig, float | Failure]:
        before, costs = self.now, self.costs
        answers = super().time(problem, configs, repeats=repeats, check=check)
        scores = problem.batch * problem.heads * problem.seq_q * problem.seq_k
        flop = 4 * problem.d_head * scores / (2 if problem.causal else 1)
        each = costs.first_run + costs.judge * check
        for config in configs:
            each_s = flop / costs.flop_per_s * true_time(config)
            before += each + each_s + repeats * (costs.sample + 2 * each_s)
        self.now = before + costs.oracle * check + costs.start * (not self._child_started)
        self._child_started = True
        return answers

    def _go_on(self) -> None:
        """What the compilers began by now."""
        while self._queue and self._free[0] <= self.now:
            job = self._queue.popleft()
            if job not in self._done:
                self._done[job] = max(self._free[0], self.now) + self.costs.compile
                heapq.heapreplace(self._free, self._done[job])
