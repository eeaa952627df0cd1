# SPDX-License-Identifier: Apache-2.0
"""A point of the grid of functions, measured: ours, the built-in kernel, and flex_attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any

import torch

from flash_attention.files import FilePath
from flash_attention.launch.plans import plan_for
from flash_attention.records import Positive, Size
from flash_attention.reference.judge import Check
from flash_attention_workbench.bench.function_case import (
    BUILT_IN,
    OURS,
    FunctionCase,
)
from flash_attention_workbench.bench.functions import FUNCTIONS, KINDS, FunctionPoint
from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.grid_record import load_measured, measured
from flash_attention_workbench.bench.peers.flex_functions import FLEX
from flash_attention_workbench.bench.peers.lineup import first_lines
from flash_attention_workbench.bench.statistics import tflops
from flash_attention_workbench.bench.timing import (
    AUTOGRAD_SPINS,
    SPIN_CYCLES,
    Contender,
    time_in_turn,
)

# About 2 ms: what torch.compile made of flex_attention takes the host up to half of that.
SPINS = 2 * AUTOGRAD_SPINS


@dataclass(frozen=True)
class FunctionRow:
    """One point: the milliseconds of every contender whose results were right, and why others have
    none."""

    function: str
    d: Size
    seq: Size
    batch: Size
    heads: Size
    measured: str
    config: str
    ms: Mapping[str, Positive]
    tflops: Positive | None  # ours, of the keys that queries see
    spread: Mapping[str, float]  # interquartile range, as a fraction of the median
    error_ratio: Mapping[str, float]  # largest error, in units of 16-bit torch's
    note: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether our results are right."""
        return OURS in self.ms

    @property
    def of_built_in(self) -> float | None:
        """Our time as a multiple of that of the built-in kernel."""
        return self._ratio(OURS, BUILT_IN)

    @property
    def of_flex(self) -> float | None:
        """Our speed as a multiple of flex_attention's."""
        return self._ratio(FLEX, OURS)

    def _ratio(self, one: str, other: str) -> float | None:
        return self.ms[one] / self.ms[other] if {one, other} <= self.ms.keys() else None

    @property
    def label(self) -> str:
        """The point in a few words."""
        words = Measured[self.measured].words
        return f"{self.function}, {self.batch} x {self.seq}, d {self.d}, {words}"


@dataclass(frozen=True)
class CostsRecord:
    """What every stored file of the grid has. It says more of where it was measured."""

    device: str
    date: str
    commit: str | None
    command: str
    grid: str
    repeats: Size
    l2: str  # cold or hot
    plans_ms: Mapping[str, Mapping[str, Positive]]  # by function and tokens
    first_calls: Mapping[str, Mapping[str, Mapping[str, Positive]]]
    """By contender and by what happens, in milliseconds."""


@dataclass(frozen=True)
class FunctionsRecord(CostsRecord):
    """What a file has if more than costs was measured."""

    rows: tuple[FunctionRow, ...]


def load_functions(path: FilePath) -> FunctionsRecord:
    """Read what `flash-attention bench --grid functions --json` wrote."""
    what = "a measured grid of functions, as `flash-attention bench --grid functions` writes it"
    return load_measured(path, FunctionsRecord, FUNCTIONS, what)


def costs_record(record: Mapping[str, Any]) -> CostsRecord:
    """The costs in a file that was read, which may have nothing else."""
    return measured(record, CostsRecord, FUNCTIONS)


def functions_record(record: Mapping[str, Any]) -> FunctionsRecord:
    """The record of a file that was read."""
    return measured(record, FunctionsRecord, FUNCTIONS)


@dataclass(frozen=True)
class How:
    """How points are measured."""

    device: torch.device
    repeats: int = 25
    hot: bool = False
    flex: bool = True


def measure_function(point: FunctionPoint, how: How) -> FunctionRow:
    """Time a point's contenders in turn, and check what each computed."""
    with torch.set_grad_enabled(point.measured is Measured.BACKWARD):
        return _measured(FunctionCase.of(point, how.device), how)


def _measured(case: FunctionCase, how: How) -> FunctionRow:
    point = case.point
    contenders, refused = _lined_up(case, how)
    checks: dict[str, Mapping[str, Check]] = {}
    judge = case.judge()

    def check(name: str, result: Any) -> None:
        if name != BUILT_IN or case.kind.score is None:  # otherwise it computes something else
            checks[name] = judge.check(result)

    timings = time_in_turn(
        contenders,
        device=how.device,
        repeats=how.repeats,
        check=check,
        hot=how.hot,
        spin_cycles=SPINS * SPIN_CYCLES,
    )
    for name, of in checks.items():
        wrong = [f"wrong {part}: {one}" for part, one in of.items() if not one.ok]
        refused |= {name: first} if (first := next(iter(wrong), "")) else {}
    right = {name: timing for name, timing in timings.items() if name not in refused}
    ours = right.get(OURS)
    return FunctionRow(
        *(point.function, point.d_head, point.seq_len, point.batch, point.heads),
        measured=point.measured.name,
        config="" if ours is None else _config(case),
        ms={name: timing.median_ms for name, timing in right.items()},
        tflops=None if ours is None else tflops(case.flop, ours.median_ms),
        spread={name: timing.spread for name, timing in right.items()},
        error_ratio={name: max(c.ratio for c in of.values()) for name, of in checks.items()},
        note=case.note,
        refused=refused,
    )


def _lined_up(case: FunctionCase, how: How) -> tuple[list[Contender], dict[str, str]]:
    """The contenders that ran once, and why others did not."""
    names = [OURS]
    names += [BUILT_IN] if KINDS[case.point.function].built_in is not None else []
    names += [FLEX] if how.flex else []
    contenders, refused = [], {}
    for name in names:
        try:
            contender = case.contender(name)
            contender.run()
            if how.device.type == "cuda":
                torch.cuda.synchronize(how.device)
            contenders.append(contender)
        except Exception as reason:  # a compiler of a peer may raise anything
            refused[name] = first_lines(reason)
    return contenders, refused


def _config(case: FunctionCase) -> str:
    """The kernel of ours."""
    if case.point.measured is Measured.FORWARD:
        return plan_for(case.forward_call(OURS)).config.short_form()
    return plan_for(case.backward_call(OURS)).config.short_form()


def summary(rows: Sequence[FunctionRow]) -> list[str]:
    """Short lines to end a run with: who is missing and why, means and extremes by function."""
    lines = [f"{row.label}: {name}: {why}" for row in rows for name, why in row.refused.items()]
    lines += [f"{row.label}: {row.note}" for row in rows if row.note]
    for kind in dict.fromkeys(row.measured for row in rows):
        for function in (*KINDS, None):
            some = [
                row for row in rows if row.measured == kind and function in (row.function, None)
            ]
            if ratios := ratios_words(some):
                words = Measured[kind].words
                lines.append(f"{function or 'all functions'}, {words}: {ratios}")
    return lines


def ratios_words(rows: Sequence[FunctionRow]) -> str:
    """The means of the ratios of some rows, and the worst of them, in words."""
    times = [row.of_built_in for row in rows if row.of_built_in is not None]
    speeds = [row.of_flex for row in rows if row.of_flex is not None]
    words = []
    if times:
        words.append(
            f"{geometric_mean(times):.3f} of the built-in kernel's time (at most {max(times):.3f})"
        )
    if speeds:
        words.append(
            f"{geometric_mean(speeds):.2f} times as fast as {FLEX} (at least {min(speeds):.2f})"
        )
    return ", ".join(words)
