# SPDX-License-Identifier: Apache-2.0
"""How this project times kernels, and the only place that does.

CUDA events, L2 flushed before each sample unless asked for hot, contenders taken in turn, outputs
poisoned. A turn starts with a run that is not timed: taken one launch at a time, right after other
kernels, FA2 measured up to 20 % slower at 1024 rows than by itself. Every round has another order:
near the power limit a kernel leaves its successor a lower clock, and nobody should always come
after the same one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from flash_attention_workbench.bench.statistics import Timing, summarise

# The GPU spins this long before each sample, longer than the host needs to queue it: the events
# around a kernel see the kernel and not the launch.
SPIN_CYCLES = 400_000  # about 0.2 ms
AUTOGRAD_SPINS = 5  # times as long, because the host needs longer to queue gradients


@dataclass(frozen=True)
class Contender:
    """One implementation: `run` launches it and returns its output or gradients, `poison` spoils
    them first."""

    name: str
    run: Callable[[], Any]
    poison: Callable[[], object] = lambda: None


def captured(contender: Contender) -> Contender:
    """Return the contender that replays a CUDA graph of what this one launches."""
    contender.run()  # compiles and loads outside of the graph
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = contender.run()

    def replay() -> Any:
        graph.replay()
        return output

    return replace(contender, run=replay)


class L2Flush:
    """Overwrites a buffer of twice the L2 cache, so every sample starts cold."""

    def __init__(self, device: torch.device) -> None:
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self._buffer = torch.empty(2 * l2_bytes // 4, dtype=torch.int32, device=device)

    def __call__(self) -> None:
        self._buffer.zero_()


def time_in_turn(
    contenders: Sequence[Contender],
    *,
    device: torch.device,
    repeats: int,
    check: Callable[[str, Any], None],
    hot: bool = False,
    spin_cycles: int = SPIN_CYCLES,
) -> dict[str, Timing]:
    """Times all contenders once a round; `check` judges what each one's last timed run wrote.

    With `hot` a sample finds in L2 what the untimed run before it left there.
    """
    with torch.cuda.device(device):
        flush: Callable[[], None] = (lambda: None) if hot else L2Flush(device)
        samples: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {
            contender.name: [] for contender in contenders
        }
        for repeat in range(repeats):
            for contender in random.Random(repeat).sample(contenders, len(contenders)):
                contender.run()
                contender.poison()
                flush()
                torch.cuda._sleep(spin_cycles)
                start = torch.cuda.Event(enable_timing=True)
                end = torch.cuda.Event(enable_timing=True)
                start.record()
                output = contender.run()
                end.record()
                samples[contender.name].append((start, end))
                if repeat == repeats - 1:
                    check(contender.name, output)
            torch.cuda.synchronize(device)
    return {
        name: summarise(start.elapsed_time(end) for start, end in events)
        for name, events in samples.items()
    }
