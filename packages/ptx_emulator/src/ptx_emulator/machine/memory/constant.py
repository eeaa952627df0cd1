# SPDX-License-Identifier: Apache-2.0
"""Constant memory: variables of the module that kernels read, through a cache of their own."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ptx_emulator.machine.access import Access, Mask
from ptx_emulator.machine.lanes import Selection
from ptx_emulator.machine.memory.global_access import GlobalAccess


class ConstantAccess:
    """Loads that are not counted as those of global memory, where the variables lie."""

    def __init__(self, variables: GlobalAccess) -> None:
        self._variables = variables

    def load(
        self, sel: Selection, addr: NDArray[Any], size: int, n: int, mask: Mask, pc: int
    ) -> tuple[NDArray[Any], ...]:
        access = self._variables.resolve(Access(sel, addr, size * n, mask, pc, "load"))
        return self._variables.storage.gather(access.where, size, n)
