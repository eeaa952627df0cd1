# SPDX-License-Identifier: Apache-2.0
"""What lanes learn of each other's loads by shuffles, votes and reductions.

What a lane stores may be made of what another lane has loaded. It can only be stored when that load
is over, without a __syncwarp: blocks add up numbers of warps that way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.program.blocks import defines_and_uses, registers_of
from ptx_emulator.ptx.model import Instruction, Kernel

EXCHANGES = {"shfl", "redux", "vote", "match"}


class Exchanged:
    """Which instructions a stored value comes from, on whatever path."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._loads: dict[int, set[int]] = {}  # by store

    @property
    def _instructions(self) -> Sequence[Instruction]:
        """Those of the kernel, which a program from disk reads when somebody looks."""
        return self._kernel.instructions

    def feeds(self, loads: NDArray[np.integer], store: int) -> NDArray[np.bool_]:
        """Of which loads of other lanes what is stored is made."""
        if store not in self._loads:
            self._loads[store] = self._behind_exchanges(store)
        return np.isin(loads, list(self._loads[store]))

    def _behind_exchanges(self, store: int) -> set[int]:
        made_of = self._sources(self._stored.get(store, ()))
        exchanges = (self._instructions[pc] for pc in made_of)
        given = (i.operands[1] for i in exchanges if i.parts[0] in EXCHANGES)
        return self._sources(register for operand in given for register in registers_of(operand))

    def _sources(self, registers: Iterable[str]) -> set[int]:
        """The instructions that registers come from."""
        found: set[int] = set()
        open_ = list(registers)
        while open_:
            for pc in self._writers.get(open_.pop(), ()):
                if pc not in found:
                    found.add(pc)
                    open_ += defines_and_uses(self._instructions[pc])[1]
        return found

    @cached_property
    def _stored(self) -> dict[int, tuple[str, ...]]:
        """The registers that stores take their values from."""
        numbered = enumerate(self._instructions)
        return {pc: registers_of(i.operands[-1]) for pc, i in numbered if i.parts[0] == "st"}

    @cached_property
    def _writers(self) -> dict[str, list[int]]:
        writers: dict[str, list[int]] = {}
        for pc, instruction in enumerate(self._instructions):
            for register in defines_and_uses(instruction)[0]:
                writers.setdefault(register, []).append(pc)
        return writers
