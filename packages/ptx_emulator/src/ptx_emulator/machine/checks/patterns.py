# SPDX-License-Identifier: Apache-2.0
"""Accesses to shared memory that were made before, at the same addresses by the same lanes."""

from __future__ import annotations

from dataclasses import dataclass

from ptx_emulator.machine.access import Access
from ptx_emulator.machine.launch.counters import SharedSite


@dataclass
class Pattern:
    """A resolved access, what it counts, and whether a read met nothing that was never written."""

    access: Access
    counts: SharedSite
    written: bool = False
