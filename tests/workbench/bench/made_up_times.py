# SPDX-License-Identifier: Apache-2.0
"""In place of `time_in_turn`: everything runs, nothing is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from flash_attention_workbench.bench.statistics import Timing
from flash_attention_workbench.bench.timing import Contender

TimeInTurn = Callable[..., dict[str, Timing]]


def made_up_times(milliseconds: Callable[[str], float], spread: float = 0.0) -> TimeInTurn:
    """Make a stand-in that gives each contender the median that `milliseconds` says of its name,
    and times as far as `spread` from it."""

    def time_in_turn(
        contenders: Sequence[Contender],
        *,
        device: torch.device,
        repeats: int,
        check: Callable[[str, Tensor], None],
        hot: bool,
    ) -> dict[str, Timing]:
        for contender in contenders:
            contender.poison()
            check(contender.name, contender.run())
        medians = {contender.name: milliseconds(contender.name) for contender in contenders}
        return {name: Timing(ms, ms - spread, ms + spread, repeats) for name, ms in medians.items()}

    return time_in_turn
