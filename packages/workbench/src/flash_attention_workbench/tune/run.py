# SPDX-License-Identifier: Apache-2.0
"""tune: problem after problem, each from the space and from what its neighbours found."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache, partial
from math import inf
from pathlib import Path

import torch

from flash_attention import compile as compiler
from flash_attention.arch import Arch
from flash_attention.choose.choice import Rule
from flash_attention.choose.dense import DenseProblem
from flash_attention.choose.rules import choose
from flash_attention.choose.table import Entry, Table
from flash_attention.choose.table_file import load_table, save_table
from flash_attention.choose.tables import device_name
from flash_attention.errors import UnsupportedError
from flash_attention.families.passes import Pass, read_pass
from flash_attention.families.recipe import Setting
from flash_attention.families.registry import AnyFamily, family_called, family_of
from flash_attention.files import check_writable
from flash_attention.kernel_configs import DType, KernelConfig, parse_kernel_config
from flash_attention.launch.device import device_arch, device_sms
from flash_attention.version import VERSION
from flash_attention_workbench.bench.environment import driver_version
from flash_attention_workbench.bench.grid import Point
from flash_attention_workbench.tune.bench import Bench
from flash_attention_workbench.tune.candidates import (
    carried_over,
    check_candidates,
    heuristic,
    space_of,
    starting_points,
)
from flash_attention_workbench.tune.device import ChildMeasurer
from flash_attention_workbench.tune.kernels import kernel_digest
from flash_attention_workbench.tune.points import problems_of
from flash_attention_workbench.tune.search import THOROUGH, Effort, Result, Search
from flash_attention_workbench.tune.store import Decision, Machine, Store, default_store

logger = logging.getLogger("flash_attention")

BUDGET_S = 420.0  # the fa3 grid takes about 300 with 16 cores
CARRIED = 8  # configs that a problem takes over from each neighbour
ROUNDS_SHARE = 0.3  # of a problem's time, for the rounds after the sieve, until one was seen
LEAST_SHARE = 0.1  # for the sieve, however long rounds are
AHEAD = 1.5  # times its share, a sieve may take: most need less


@dataclass(frozen=True)
class Progress:
    """Where a run stands."""

    problem: DenseProblem
    number: int  # of the problem, from 1
    total: int
    best: KernelConfig
    gain: float  # how many times as fast as the heuristic's choice
    seconds_left: float


Report = Callable[[Progress], None]


def tune(
    grid: str | os.PathLike[str] | Sequence[Point],
    *,
    d_heads: Sequence[int] | None = None,
    masks: Sequence[bool] | None = None,
    seq_lens: Sequence[int] | None = None,
    dtype: DType | str | None = None,
    pass_: str = Pass.FORWARD.value,
    deterministic: bool = False,
    table: str | os.PathLike[str] | None = None,
    store: str | os.PathLike[str] | None = None,
    budget: float = BUDGET_S,
    family: str | None = None,
    device: int | None = None,
    report: Report = lambda progress: None,
    tell: Callable[[str], None] = lambda line: None,
) -> Table:
    """Find the fastest config for every problem of a grid on a GPU of this machine.

    - `grid`: "fa3", "seed", "prefill_gqa", "backward_gqa", "tangent", the path of a file of
      problems, or points.
    - `d_heads`, `masks` (True is causal), `seq_lens`, `dtype`: the part of the grid to tune.
    - `pass_`: "forward", "backward" for the kernels of dq, dk and dv, timed together, or "tangent"
      for the kernels of forward-mode derivatives.
    - `deterministic`: tune the backward pass of calls that ask for the same bits in every run.
    - `table`: a table file, which is written after each problem. Other entries stay in it.
    - `store`: a file of all timings. None is repeated, so an interrupted run continues.
    - `budget`: about how many seconds the run takes. A short search is shallow.
    - `family`: the kernels to try, such as "sm80"; by default the newest that run on the GPU.
    - `device`: the index of the GPU.
    - `report`, `tell`: called with the progress, and with lines on what was left out and why.

    Returns the table. Raises UnsupportedError without a GPU, or for problems that cannot be tuned.
    """
    element = DType.from_string(dtype) if isinstance(dtype, str) else dtype
    of = read_pass("pass_", pass_)
    only = None if family is None else family_called(family, of)
    part = partial(problems_of, grid, d_heads=d_heads, masks=masks, seq_lens=seq_lens)
    problems = part(dtype=element, pass_=of, deterministic=deterministic)
    if not torch.cuda.is_available():
        raise UnsupportedError("tuning times kernels, which needs an NVIDIA GPU; torch sees none")
    index = torch.cuda.current_device() if device is None else device
    machine = machine_of(index)
    check_tunable(problems, machine, device_sms(index), only)
    path = None if table is None else Path(table)
    before = _checked_table(path, machine.device)
    measurer = ChildMeasurer(machine.arch, index)
    try:
        bench = Bench(measurer, Store(default_store() if store is None else Path(store), machine))
        for line in spaces(problems, machine.arch, only):
            tell(line)
        run = Run(problems, bench, budget=budget, family=only, report=report)
        found = _filled(before, run, path)
        for problem in sorted(set(problems)):
            tell(fates(problem, starting_points(problem, machine.arch, only), bench.store))
    finally:
        measurer.close()
    return found


@cache
def machine_of(device_index: int) -> Machine:
    """The machine that timings on a device are of."""
    arch, name = device_arch(device_index), device_name(device_index)
    return Machine(name, driver_version(), compiler.nvrtc_version(), arch)


def check_tunable(
    problems: Sequence[DenseProblem],
    machine: Machine,
    num_sms: int,
    family: AnyFamily | None = None,
) -> None:
    """Every problem has a kernel that is chosen by its config alone, and others to compare with."""
    for problem in problems:
        check_candidates(problem, machine.arch, family)
        if family is not None and not family.splits_keys:
            continue
        choice = choose(problem.problem, Setting(machine.arch, num_sms))
        if choice.rule is Rule.DECODE:
            raise UnsupportedError(
                f"{problem} has so few queries that its keys are split, and how follows from the"
                " number of multiprocessors: there is nothing to tune; use more queries"
            )


def spaces(
    problems: Sequence[DenseProblem], arch: Arch, family: AnyFamily | None = None
) -> list[str]:
    """Of every kind of kernel that is tried, how many combinations fell to which rule."""
    firsts = (heuristic(problem, arch, family) for problem in sorted(set(problems)))
    kinds = {(family_of(c).name, c.dtype.name, c.d_head): space_of(c, arch) for c in firsts}
    return [
        f"{name} {dtype} d {d_head}: {kinds[name, dtype, d_head]}" for name, dtype, d_head in kinds
    ]


def fates(problem: DenseProblem, configs: Sequence[KernelConfig], store: Store) -> str:
    """How many of the configs that a search starts from were timed, or why they were not."""
    counts: Counter[str] = Counter()
    for config in configs:
        failure = store.failure(problem, config)
        timed = "timed" if store.was_timed(problem, config) else "not reached in the time"
        counts[failure.fate if failure else timed] += 1
    said = ", ".join(f"{count:,} {fate}" for fate, count in counts.most_common())
    return f"{problem}: of {len(configs):,} configs {said}"


def _filled(table: Table, run: Run, path: Path | None) -> Table:
    """The table with what a run finds, which is written after each problem."""
    for entry in run.entries():
        table = table.with_entries([entry])
        if path is not None:
            save_table(table, path)
    return table


def _checked_table(path: Path | None, device: str) -> Table:
    if path is None:
        return Table(device)
    there = os.path.lexists(path)
    found = load_table(path).merge(Table(device)) if there else Table(device)  # or refuses it
    check_writable(path)
    return found


class Run:
    """Searches at one problem after another, so that each can start from what the last ones found.

    A decision in the store is as good as a search if it was made with the effort of this run, or of
    one of `accepts`.
    """

    def __init__(
        self,
        problems: Sequence[DenseProblem],
        bench: Bench,
        *,
        budget: float,
        effort: Effort = THOROUGH,
        accepts: Sequence[Effort] = (),
        family: AnyFamily | None = None,
        report: Report = lambda progress: None,
    ) -> None:
        self._order = sorted(set(problems))  # neighbouring lengths one after the other
        self._bench = bench
        self._arch = bench.store.machine.arch
        self._clock = bench.measurer.seconds
        self._end = self._clock() + budget
        self._nominal = budget / max(len(self._order), 1)  # seconds for a problem
        self._effort = effort
        self._accepted = (effort, *accepts)
        self._family = family
        self._report = report
        self._rounds_s = 0.0  # the longest time that the rounds after a sieve took
        self._rankings: dict[DenseProblem, tuple[KernelConfig, ...]] = {}

    def entries(self) -> Iterator[Entry]:
        """An entry for each problem that there is time for."""
        for number, problem in enumerate(self._order, 1):
            decision = self._known(problem)
            if decision is None and self._clock() < self._end:
                decision = self._searched(problem, number)
            if decision is not None:
                self._rankings[problem] = tuple(map(parse_kernel_config, decision.ranking))
                yield entry_of(problem, decision, self._bench.store.machine)

    def _known(self, problem: DenseProblem) -> Decision | None:
        """How an earlier search ended, if one from the same configs had all the time it needed, or
        as much as this one would have."""
        decision = self._bench.store.decision(problem, heuristic(problem, self._arch, self._family))
        spaces = [self._digest(problem, effort) for effort in self._accepted]
        if decision is None or decision.space not in spaces:
            return None
        return decision if decision.complete or decision.seconds >= self._nominal else None

    def _searched(self, problem: DenseProblem, number: int) -> Decision | None:
        sieved, deadline = 0.0, inf
        for soon in self._order[number - 1 : number + 1]:
            self._compile_ahead(soon)

        def out_of_time() -> bool:
            nonlocal sieved, deadline
            sieved = self._clock()
            if deadline == inf:  # asked for the first time: children are up, the unit is timed
                deadline = sieved + self._sieve_s(len(self._order) - number + 1)
            return sieved >= deadline

        def tell(best: KernelConfig, relative: float) -> None:
            seconds = max(self._end - self._clock(), 0.0)
            self._report(Progress(problem, number, len(self._order), best, 1 / relative, seconds))

        first = heuristic(problem, self._arch, self._family)
        search = Search(
            *(self._bench, problem, first),
            effort=self._effort,
            out_of_time=out_of_time,
            tell=tell,
        )
        start = self._start(problem, self._effort)
        result = search.run([*self._from_neighbours(problem), *start])  # the likeliest first
        if result is None:
            logger.warning("%s is left out: the heuristic's choice cannot be timed", problem)
            return None
        self._rounds_s = max(self._rounds_s, self._clock() - sieved)
        space = self._digest(problem, self._effort)
        decision = decided(result, first, seconds=self._nominal, space=space)
        self._bench.store.add_decision(problem, first, decision)
        return decision

    def _start(self, problem: DenseProblem, effort: Effort) -> list[KernelConfig]:
        return starting_points(problem, self._arch, self._family, effort.most)

    def _digest(self, problem: DenseProblem, effort: Effort) -> str:
        """Of the kernels that a search starts from, and how far it goes."""
        start = sorted(
            f"{c.short_form()} {kernel_digest(c, problem.compiled_for(c), self._arch)}"
            for c in self._start(problem, effort)
        )
        return hashlib.sha256("\n".join((repr(effort), *start)).encode()).hexdigest()[:12]

    def _sieve_s(self, left: int) -> float:
        """How long the sieve of the next of so many problems may take, such that there is time for
        the rounds of all."""
        share = (self._end - self._clock()) / left
        rounds = self._rounds_s or ROUNDS_SHARE * share
        return AHEAD * max(share - rounds, LEAST_SHARE * share)

    def _compile_ahead(self, problem: DenseProblem) -> None:
        """Keep the compilers busy with what comes next while the GPU times."""
        start = self._start(problem, self._effort)
        new = [c for c in start if not self._bench.store.was_timed(problem, c)]
        if self._known(problem) is None:
            self._bench.measurer.compile(problem, new)

    def _from_neighbours(self, problem: DenseProblem) -> list[KernelConfig]:
        """The best of the two nearest problems of the same kind."""
        kin = [other for other in self._rankings if other.kind == problem.kind]
        return [
            config
            for other in sorted(kin, key=problem.distance)[:2]
            for config in carried_over(self._rankings[other], other, problem)
        ]


def decided(result: Result, first: KernelConfig, *, seconds: float, space: str) -> Decision:
    """What the store keeps of a search."""
    return Decision(
        ranking=tuple(config.short_form() for config in result.ranking[:CARRIED]),
        winner=result.winner.short_form(),
        ms=round(result.ms, 6),
        heuristic=first.short_form(),
        heuristic_ms=round(result.heuristic_ms, 6),
        when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=seconds,
        complete=result.complete,
        space=space,
    )


def entry_of(problem: DenseProblem, decision: Decision, machine: Machine) -> Entry:
    """The line of the table for a search that ended."""
    return Entry(
        problem=problem,
        config=parse_kernel_config(decision.winner),
        ms=decision.ms,
        heuristic=decision.heuristic,
        heuristic_ms=decision.heuristic_ms,
        when=decision.when,
        driver=machine.driver,
        nvrtc=machine.nvrtc,
        version=VERSION,
    )
