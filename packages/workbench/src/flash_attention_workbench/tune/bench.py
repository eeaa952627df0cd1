# SPDX-License-Identifier: Apache-2.0
"""Bench: times configs at a problem through the store, which nothing passes twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from flash_attention.choose.dense import DenseProblem
from flash_attention.kernel_configs import KernelConfig
from flash_attention_workbench.tune.measurer import Compiled, Failure, Fate, Measurer
from flash_attention_workbench.tune.store import Sample, Store

MAX_SPILL_BYTES = 128  # stored and loaded; the best kernels of some d_head spill up to 72
BUGS: tuple[Fate, ...] = ("hung", "faulted", "wrong")  # of a kernel that is compiled as it should
BATCH = 12  # configs that are timed in turn while others are compiled

logger = logging.getLogger("flash_attention")


@dataclass(frozen=True)
class Bench:
    """A measurer and its store."""

    measurer: Measurer
    store: Store

    def batches(
        self,
        problem: DenseProblem,
        configs: Sequence[KernelConfig],
        yardstick: KernelConfig,
        hurry: Callable[[], bool] = lambda: False,
    ) -> Iterator[list[KernelConfig]]:
        """The configs that may be timed, as they are compiled; first those that were timed before.

        The yardstick is always among them: spilling or not, it is what others are compared with. In
        a `hurry` nothing more is waited for.
        """
        known = [c for c in configs if self._was_timed(problem, c)]
        if known:
            yield known
        new = [c for c in configs if c not in known and not self.store.failure(problem, c)]
        batch: list[KernelConfig] = []
        for config, answer in self.measurer.compiled(problem, new):
            if failure := self._pruned(answer, spared=config == yardstick):
                self._give_up(problem, config, failure)
                continue
            batch.append(config)
            if len(batch) == BATCH or hurry():
                yield batch
                batch = []
        if batch:
            yield batch

    def times(
        self,
        problem: DenseProblem,
        configs: Sequence[KernelConfig],
        yardstick: KernelConfig,
        *,
        repeats: int,
        check: bool = False,
    ) -> dict[KernelConfig, Sample]:
        """The times of those that have one; what the store lacks is timed beside the yardstick."""
        wanted = [c for c in configs if not self.store.failure(problem, c)]
        missing = [c for c in wanted if not self.store.sample(problem, c, repeats)]
        if missing:
            self._measure(problem, missing, yardstick, repeats, check)
        found = {c: self.store.sample(problem, c, repeats) for c in wanted}
        return {
            c: sample
            for c, sample in found.items()
            if sample is not None and not self.store.failure(problem, c)
        }

    def _measure(
        self,
        problem: DenseProblem,
        missing: Sequence[KernelConfig],
        yardstick: KernelConfig,
        repeats: int,
        check: bool,
    ) -> None:
        lineup = list(dict.fromkeys((yardstick, *missing)))
        answers = self.measurer.time(problem, lineup, repeats=repeats, check=check)
        unit = answers[yardstick]
        for config in lineup:
            answer = answers[config]
            if isinstance(answer, Failure):
                self._give_up(problem, config, answer)
            elif not isinstance(unit, Failure) and not self.store.sample(problem, config, repeats):
                sample = Sample(answer, answer / unit)
                self.store.add_sample(problem, config, repeats, sample)

    def _was_timed(self, problem: DenseProblem, config: KernelConfig) -> bool:
        failed = self.store.failure(problem, config)
        return failed is None and self.store.was_timed(problem, config)

    def _pruned(self, answer: Compiled | Failure, *, spared: bool) -> Failure | None:
        if isinstance(answer, Failure):
            return answer
        if answer.spill_bytes > MAX_SPILL_BYTES and not spared:
            return Failure("spills", f"{answer.spill_bytes} bytes of {answer.registers} registers")
        return None

    def _give_up(self, problem: DenseProblem, config: KernelConfig, failure: Failure) -> None:
        self.store.add_failure(problem, config, failure)
        if failure.fate in BUGS:
            form = config.short_form()
            logger.warning("%s, %s %s: %s", problem, form, failure.fate, failure.reason)
