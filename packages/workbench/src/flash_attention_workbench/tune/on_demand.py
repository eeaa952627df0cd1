# SPDX-License-Identifier: Apache-2.0
"""tuning: a context in which `attention` tunes what it has not seen."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from flash_attention.arch import Arch
from flash_attention.choose.dense import DenseProblem
from flash_attention.choose.table import Entry
from flash_attention.choose.tables import tables
from flash_attention.launch.plans import forget_plans
from flash_attention_workbench.tune.bench import Bench
from flash_attention_workbench.tune.device import InProcessMeasurer
from flash_attention_workbench.tune.run import Run, machine_of
from flash_attention_workbench.tune.search import QUICK, THOROUGH
from flash_attention_workbench.tune.store import Store, default_store

logger = logging.getLogger("flash_attention")


@contextmanager
def tuning(*, budget: float = 20.0, store: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Let `attention` tune each new problem at its first call in a `with` block, and the backward
    pass at the first call that needs gradients.

    - `budget`: about how many seconds a problem takes.
    - `store`: a file of all timings. A problem with an entry there or in a table is not tuned.

    The configs that were found are used until the program ends, also outside of the block.
    `flash_attention.tune` searches longer and writes a table. Kernels run in this process, so a
    kernel that hangs blocks it.
    """
    path = default_store() if store is None else Path(store)

    def tune_one(problem: DenseProblem, arch: Arch, device_index: int) -> Entry | None:
        measurer = InProcessMeasurer(arch, device_index)
        try:
            bench = Bench(measurer, Store(path, machine_of(device_index)))
            run = Run([problem], bench, budget=budget, effort=QUICK, accepts=[THOROUGH])
            return next(run.entries(), None)
        except torch.OutOfMemoryError:
            logger.warning("no memory is left to tune %s; the heuristic chooses", problem)
            return None
        finally:
            measurer.close()

    outer = tables.tune
    tables.tune = tune_one
    forget_plans()
    try:
        yield
    finally:
        tables.tune = outer
