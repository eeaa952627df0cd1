# SPDX-License-Identifier: Apache-2.0
"""The search at one problem: a cheap sieve, steps from its best, halving, and a fair final."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flash_attention.choose.dense import DenseProblem
from flash_attention.kernel_configs import KernelConfig
from flash_attention_workbench.tune.bench import Bench
from flash_attention_workbench.tune.candidates import neighbours
from flash_attention_workbench.tune.store import Sample


@dataclass(frozen=True)
class Effort:
    """How much is spent on a problem; samples of each config, and how many are left after."""

    sieve_repeats: int = 3
    steps: int = 2  # times the neighbours of the best are tried
    stepped_from: int = 2  # of the best
    rounds: tuple[tuple[int, int], ...] = ((7, 12), (15, 6))  # (repeats, how many are let in)
    finalists: int = 3  # beside the heuristic's choice
    final_repeats: int = 41
    most: int | None = None  # configs to start from; None: all there are
    margin: float = 0.01  # what is less faster than this is noise: the heuristic's choice stays


THOROUGH = Effort()
QUICK = Effort(steps=1, rounds=((9, 6),), finalists=2, final_repeats=25, most=200)


@dataclass(frozen=True)
class Result:
    """The winner and the heuristic's choice, timed in the same turns, and who came next."""

    winner: KernelConfig
    ms: float
    heuristic_ms: float
    ranking: tuple[KernelConfig, ...]  # the best of the last round before the final
    complete: bool  # nothing was left out for want of time


Best = Callable[[KernelConfig, float], None]
"""Is told the best config so far, and its time as a fraction of the heuristic's."""


class Search:
    """Finds the fastest config for a problem.

    `out_of_time` is asked once the heuristic's choice is timed, and ends the sieve; the final is
    always held.
    """

    def __init__(
        self,
        bench: Bench,
        problem: DenseProblem,
        heuristic: KernelConfig,
        *,
        effort: Effort = THOROUGH,
        out_of_time: Callable[[], bool] = lambda: False,
        tell: Best = lambda config, relative: None,
    ) -> None:
        self._bench = bench
        self._problem = problem
        self._heuristic = heuristic
        self._effort = effort
        self._out_of_time = out_of_time
        self._tell = tell
        self._relative: dict[KernelConfig, float] = {}
        self._seen: set[KernelConfig] = set()
        self._complete = True

    def run(self, start: Sequence[KernelConfig]) -> Result | None:
        """The result, None where the heuristic's choice itself cannot be timed."""
        self._sieve([self._heuristic])
        if self._heuristic not in self._relative:
            return None
        self._sieve(start)
        for _ in range(self._effort.steps):
            best = self._best(self._effort.stepped_from)
            self._sieve([near for c in best for near in neighbours(c, self._problem)])
        for repeats, entrants in self._effort.rounds:
            survivors = self._best(entrants)
            times = self._times(survivors, repeats)
            self._relative = {c: sample.relative for c, sample in times.items()}
        return self._final()

    def _sieve(self, configs: Sequence[KernelConfig]) -> None:
        new = [c for c in dict.fromkeys(configs) if c not in self._seen]
        self._seen.update(new)
        if not new:
            return
        if self._hurry():
            self._complete = False
            return
        wanted = (self._problem, new, self._heuristic)
        for batch in self._bench.batches(*wanted, hurry=self._hurry):
            for config, sample in self._times(batch, self._effort.sieve_repeats).items():
                self._relative[config] = sample.relative
            self._tell_best()
            if self._hurry():
                self._complete = False
                return

    def _hurry(self) -> bool:
        return bool(self._relative) and self._out_of_time()

    def _final(self) -> Result | None:
        ranking = self._best(len(self._relative))
        others = [c for c in ranking if c != self._heuristic]
        lineup = [self._heuristic, *others[: self._effort.finalists]]
        times = self._times(lineup, self._effort.final_repeats, check=True)
        if self._heuristic not in times:
            return None
        unit = times[self._heuristic]
        winner = min(times, key=lambda config: times[config].relative)
        if times[winner].relative > 1 - self._effort.margin:
            winner = self._heuristic
        self._tell(winner, times[winner].relative)
        ms = unit.ms * times[winner].relative  # as if in the turns of this very heuristic_ms
        return Result(winner, ms, unit.ms, tuple(ranking), self._complete)

    def _times(
        self, configs: Sequence[KernelConfig], repeats: int, check: bool = False
    ) -> dict[KernelConfig, Sample]:
        return self._bench.times(
            self._problem, configs, self._heuristic, repeats=repeats, check=check
        )

    def _best(self, count: int) -> list[KernelConfig]:
        return sorted(self._relative, key=lambda config: self._relative[config])[:count]

    def _tell_best(self) -> None:
        for best in self._best(1):
            self._tell(best, self._relative[best])
