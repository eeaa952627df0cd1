# SPDX-License-Identifier: Apache-2.0
"""Where a program tells a debugger what it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ptx_emulator.machine.lanes import Selection
    from ptx_emulator.machine.machine import Machine


@dataclass(frozen=True)
class Hooks:
    """`stops`: the registers to show behind an instruction. `watching`: memory is watched."""

    stops: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    watching: bool = False


class Debugger(Protocol):
    """What a run tells; `pc` is the instruction that the lanes of `s` have executed."""

    @property
    def hooks(self) -> Hooks: ...

    def attach(self, machine: Machine) -> None:
        """A launch begins."""

    def look(self, s: Selection, pc: int, address: Any = None, nbytes: int = 0) -> None:
        """Memory may have changed: where lanes accessed it, or by a copy engine."""

    def stop(self, s: Selection, pc: int, registers: Mapping[str, Any]) -> None:
        """A place that a line of the source leads to."""
