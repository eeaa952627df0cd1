# SPDX-License-Identifier: Apache-2.0
"""Order between CTAs: what other CTAs did before a CTA's next access to global memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flash_attention.emulator.machine.access import Bools, Ints

Clock = NDArray[np.int32]


class CtaOrder:
    """One vector clock per CTA of a launch.

    An atomic that returns a value, or an acquiring load, orders its CTA behind all that released
    the same place before. The fences that hardware needs around an atomic are taken for granted.
    """

    def __init__(self, num_ctas: int) -> None:
        self.seen: Clock = np.eye(num_ctas, dtype=np.int32)
        self._released: dict[int, Clock] = {}

    def epochs(self, ctas: Ints) -> Clock:
        epochs: Clock = self.seen[ctas, ctas]
        return epochs

    def meet(self, cta: int, place: int) -> None:
        """A CTA reads and changes a place at once."""
        self.acquire(cta, place)
        self.release(cta, place)

    def acquire(self, cta: int, place: int) -> None:
        """A CTA sees what others did before they released the place."""
        released = self._released.get(place)
        if released is not None:
            np.maximum(self.seen[cta], released, out=self.seen[cta])

    def release(self, cta: int, place: int) -> None:
        """Who acquires the place sees what a CTA has done and seen so far."""
        mine = self.seen[cta]
        released = self._released.get(place, mine)
        self._released[place] = np.maximum(released, mine)
        mine[cta] += 1

    def unseen(self, writers: Clock, epochs: Clock, ctas: Ints, launch: int) -> Bools:
        """Which of `ctas` meet writes of another CTA since writer `launch`, in no order. `writers`
        and `epochs` have a row for each of them."""
        others = np.maximum(writers - launch - 1, 0)
        mine = ctas[:, None]
        late = (writers > launch) & (others != mine) & (epochs > self.seen[mine, others])
        unseen: Bools = np.logical_or.reduce(late, axis=1)
        return unseen
