# SPDX-License-Identifier: Apache-2.0
"""The kernels whose PTX is mutated: five that together hold every kind of synchronisation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch

from flash_attention.compile import CompiledKernel
from flash_attention.compile.unit import Unit
from flash_attention.errors import LaunchError
from flash_attention.launch.emulation import (
    Settings,
    compiled_unit,
    emulate_backward_plan,
    emulate_plan,
)
from flash_attention.launch.plan import Plan
from flash_attention_workbench.mends import NUMBERS
from ptx_emulator import Counters, DeadlockError, Finding, load_program
from ptx_emulator.report.mends import DEADLOCK
from tests.backward_cases import assert_right, backward_of
from tests.emulator import ampere_mutations, decode_mutations, hopper_mutations
from tests.emulator.planting import TILE_COUNTER, Scene
from tests.emulator.ptx_sites import Site, sites
from tests.families.sm90.backward.cases import config
from tests.feature_cases import Case

Compiler = Callable[[Unit], CompiledKernel]


class Found(NamedTuple):
    """A kind of finding, and the line of PTX that it names; 0 if it names none."""

    kind: str
    line: int = 0


class Seen(NamedTuple):
    """What a run gave away, and the counters of the kernel that is mutated."""

    found: set[Found]
    counters: Counters


class Forward:
    """A call of a forward kernel."""

    def __init__(self, scene: Scene) -> None:
        self._made = scene.make()
        self._call = scene.call(self._made)
        self._plan = scene.plan(self._call)
        self.unit = self._plan.recipe.steps[self._plan.recipe.main].unit

    def run(self, settings: Settings, compile_unit: Compiler) -> Seen:
        result = emulate_plan(self._plan, self._call, settings, compile_unit=compile_unit)
        found = _places(result.findings)
        try:
            self._made.assert_right(result.output.nan_to_num(nan=torch.inf), result.lse)
        except AssertionError:
            found.add(Found(NUMBERS))
        return Seen(found, result.counters)


class Backward:
    """A call of a Hopper backward kernel."""

    def __init__(self, kernel: Any, case: Case) -> None:
        self._call = backward_of(case.make())
        self._plan = Plan(self._call, kernel)
        steps = [step.unit for step in self._plan.recipe.steps]
        self._main = next(n for n, unit in enumerate(steps) if unit.name.startswith("hopper"))
        self.unit = steps[self._main]

    def run(self, settings: Settings, compile_unit: Compiler) -> Seen:
        result = emulate_backward_plan(self._plan, self._call, settings, compile_unit=compile_unit)
        found = _places(result.findings)
        try:
            assert_right(result.gradients, self._call)
        except AssertionError:
            found.add(Found(NUMBERS))
        return Seen(found, result.counters[self._main])


def _places(findings: Iterable[object]) -> set[Found]:
    return {Found(each.kind, each.ptx_line or 0) for each in findings if isinstance(each, Finding)}


@dataclass(frozen=True)
class Kernel:
    """A kernel, and calls that together reach most of its lines."""

    name: str
    made: Sequence[Callable[[], Forward | Backward]]

    @cached_property
    def calls(self) -> list[Forward | Backward]:
        calls = [make() for make in self.made]
        assert len({call.unit for call in calls}) == 1, "the calls of a kernel share its text"
        return calls

    @cached_property
    def ptx(self) -> str:
        return compiled_unit(self.calls[0].unit).ptx

    @cached_property
    def reached(self) -> list[frozenset[int]]:
        """The lines of PTX that each call reaches."""
        blocks = load_program(self.ptx).blocks
        runs = [call.run(Settings(), compiled_unit) for call in self.calls]
        return [
            frozenset(
                instruction.ptx_line
                for index in run.counters.blocks
                for instruction in blocks[index].instructions
            )
            for run in runs
        ]

    @cached_property
    def sites(self) -> list[Site]:
        """The sites that some call reaches."""
        reached = frozenset().union(*self.reached)
        return [site for site in sites(self.ptx) if site.number in reached]

    def run(self, ptx: str, settings: Settings, line: int) -> set[Found]:
        """What other PTX gives away in the calls that reach a line."""
        found: set[Found] = set()
        for call, lines in zip(self.calls, self.reached, strict=True):
            if line in lines:
                found |= _run(call, ptx, settings)
        return found


def _run(call: Forward | Backward, ptx: str, settings: Settings) -> set[Found]:
    def compile_unit(unit: Unit) -> CompiledKernel:
        compiled = compiled_unit(unit)
        return replace(compiled, ptx=ptx, source_path=None) if unit == call.unit else compiled

    try:
        return call.run(settings, compile_unit).found
    except LaunchError as error:
        deadlock = error.__cause__
        if not isinstance(deadlock, DeadlockError):
            return {Found(TILE_COUNTER)}
        return {Found(DEADLOCK), *_places(deadlock.findings)}


def _forward(scene: Scene, *cases: Case) -> list[Callable[[], Forward]]:
    return [partial(Forward, replace(scene, case=case)) for case in cases]


IN_ORDER = config(64, dq="ordered", schedule="paired", order="dynamic_8")
LONG = replace(hopper_mutations.CASE, seq_k=850)  # the producer goes round its loop
LAST = [replace(hopper_mutations.CASE, seq_q=300, seq_k=keys) for keys in (1000, 1088)]
SPLIT = replace(decode_mutations.FEW, seq_k=600, used=(600, 300, 0))
QUEUED = Case("", 140, 330, heads=2, heads_k=2, causal=True)  # six tiles for two CTAs
WALKED = Case("", 560, 500, heads=1, heads_k=1, causal=True)  # tiles of one to five query blocks

KERNELS = (
    Kernel("sm_80 forward, rung 16", _forward(ampere_mutations.rung(16), ampere_mutations.CASE)),
    Kernel("sm_90 forward, rung 21", _forward(hopper_mutations.PING_PONG, LONG)),
    Kernel("sm_90 forward, rung 29", _forward(hopper_mutations.LAST, *LAST)),
    Kernel("sm_90 split keys, one launch", _forward(decode_mutations.AT_ONCE, SPLIT)),
    Kernel(
        "sm_90 backward, dQ in order",
        [partial(Backward, IN_ORDER, case) for case in (QUEUED, WALKED)],
    ),
)
