# SPDX-License-Identifier: Apache-2.0
"""The ladders of the page: what their results files are, and what these do not hold of a rung."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flash_attention_workbench.bench.stored import (
    BACKWARD_EMULATED,
    BACKWARD_LADDER,
    EMULATED,
    GRADIENTS,
    GRID,
    LADDER,
    PROFILE,
)


@dataclass(frozen=True)
class LaunchText:
    """A kernel of a pass: what it does, how often it is launched, and its geometry."""

    kernel: str
    times: int
    ctas: int
    threads: int  # of a CTA
    shared_bytes: int  # of a CTA


@dataclass(frozen=True)
class RungText:
    """A rung in words and code. `diff` is empty for the first one."""

    number: int
    name: str
    idea: str
    change: str
    diff: str
    family: str  # the architecture that its kind of config is for
    launches: tuple[LaunchText, ...] = ()  # in order
    launched_for: str = ""  # the problem of these launches


@dataclass(frozen=True)
class Ladder:
    """The rungs of a pass, the kinds of files that have measurements of them, and how the page
    calls them."""

    rungs: Sequence[RungText]
    anchor: str
    title: str
    option: str  # of the commands that make the files
    measured: str
    emulated: str
    profiled: str | None
    grid: str  # with peers at the same shapes
    prefix: str  # of the anchors of rungs
    counters_anchor: str
    counters_title: str

    @property
    def newer_family(self) -> set[int]:
        """Numbers of the rungs that are of another family than the first one."""
        return {rung.number for rung in self.rungs if rung.family != self.rungs[0].family}

    def place(self, number: int | None) -> str:
        """The anchor of a rung."""
        return f"{self.prefix}-{number}"


def forward_ladder(rungs: Sequence[RungText]) -> Ladder:
    """The ladder of the forward pass."""
    return Ladder(
        *(rungs, "ladder", "The ladder", ""),
        *(LADDER, EMULATED, PROFILE, GRID),
        prefix="rung",
        counters_anchor="counters",
        counters_title="Counted by the emulator",
    )


def backward_ladder(rungs: Sequence[RungText]) -> Ladder:
    """The ladder of the backward pass."""
    return Ladder(
        *(rungs, "backward_ladder", "The ladder of gradients", " --pass backward"),
        *(BACKWARD_LADDER, BACKWARD_EMULATED, None, GRADIENTS),
        prefix="backward-rung",
        counters_anchor="backward_counters",
        counters_title="Gradients, counted by the emulator",
    )
