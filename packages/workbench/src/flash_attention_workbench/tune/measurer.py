# SPDX-License-Identifier: Apache-2.0
"""What the search asks of a machine: compile these, time those in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from flash_attention.choose.dense import DenseProblem
from flash_attention.kernel_configs import KernelConfig

Fate = Literal["refused", "spills", "hung", "faulted", "wrong"]


@dataclass(frozen=True)
class Compiled:
    """What the compiler said of a kernel: registers of a thread, bytes it spills."""

    registers: int
    spill_bytes: int


@dataclass(frozen=True)
class Failure:
    """Why a config is out of the race."""

    fate: Fate
    reason: str


class Measurer(Protocol):
    """Compiles in the background and times in the foreground; a bad kernel is an answer."""

    def compile(self, problem: DenseProblem, configs: Sequence[KernelConfig]) -> None:
        """Begin to compile, in this order, what will be asked for; nobody waits for it yet."""

    def compiled(
        self, problem: DenseProblem, configs: Sequence[KernelConfig]
    ) -> Iterator[tuple[KernelConfig, Compiled | Failure]]:
        """Each config once it is compiled, in the order they are done; they go before all others.

        What is not compiled when the caller asks for no more is dropped.
        """

    def time(
        self, problem: DenseProblem, configs: Sequence[KernelConfig], *, repeats: int, check: bool
    ) -> Mapping[KernelConfig, float | Failure]:
        """Milliseconds of each, the median of samples taken in turn; with `check` outputs are held
        to the oracle."""

    def seconds(self) -> float:
        """A clock."""

    def close(self) -> None:
        """End what was started."""
