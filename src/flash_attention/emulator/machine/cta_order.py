# SPDX-License-Identifier: Apache-2.0
"""Order between CTAs: what other CTAs did before a CTA's next access to global memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flash_attention.emulator.machine.access import Ints

Clock = NDArray[np.int32]


class CtaOrder:
    """One vector clock per CTA of a launch.

    An atomic that returns a value orders its CTA behind all that met the same place before. The
    fences that hardware needs around it are taken for granted.
    """

    def __init__(self, num_ctas: int) -> None:
        self.seen: Clock = np.eye(num_ctas, dtype=np.int32)
        self._met: dict[int, Clock] = {}

    def epochs(self, ctas: Ints) -> Clock:
        epochs: Clock = self.seen[ctas, ctas]
        return epochs

    def meet(self, cta: int, place: int) -> None:
        """A CTA reads and changes a place at once."""
        mine = self.seen[cta]
        met = self._met.get(place)
        if met is not None:
            np.maximum(mine, met, out=mine)
        self._met[place] = mine.copy()
        mine[cta] += 1
