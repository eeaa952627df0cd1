# SPDX-License-Identifier: Apache-2.0
"""Choose the kernel for a problem: from an exact table entry, a near one, or by the heuristic."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from flash_attention.arch import Arch
from flash_attention.call.problem import Problem
from flash_attention.choose.choice import Choice, Rule
from flash_attention.choose.dense import DenseProblem
from flash_attention.choose.heuristic import select_config
from flash_attention.choose.table import Entry, Table
from flash_attention.choose.table_file import load_table
from flash_attention.errors import UnsupportedError
from flash_attention.families.recipe import NO_DEVICE, Setting
from flash_attention.families.registry import AnyFamily, family_of

TABLE_VARIABLE = "FLASH_ATTENTION_TABLE"
SHIPPED = Path(__file__).resolve().parent / "measured"
MAX_DISTANCE = 1.5  # of a near entry, such as lengths times 1.4 and batch times 2

logger = logging.getLogger("flash_attention")


@dataclass(frozen=True)
class Source:
    """A table to choose from. With `hint` it is used for other devices too."""

    table: Table
    name: str
    hint: bool = False
    shipped: bool = False


class _Tables:
    """The tables of this process."""

    def __init__(self) -> None:
        self.tuned: dict[str, Table] = {}  # by device, from `tuning`
        self.chosen: Source | None = None  # from `use_table`
        self.tune: Callable[[DenseProblem, Arch, int], Entry | None] | None = None

    def sources(self, device: str) -> Iterator[Source]:
        """Yield the tables to look up for a device, in order of precedence."""
        if device in self.tuned:
            yield Source(self.tuned[device], "tuned in this process")
        if self.chosen is not None:
            yield self.chosen
        elif named := os.environ.get(TABLE_VARIABLE):
            yield Source(_loaded(Path(named)), named)
        for path in sorted(SHIPPED.glob("*.json")):
            yield Source(_loaded(path), path.name, shipped=True)


tables = _Tables()


@cache
def _loaded(path: Path) -> Table:
    table = load_table(path)
    for note in table.notes:
        logger.warning(note)
    return table


@cache
def device_name(device_index: int) -> str:
    """Return the name of a CUDA device, which tables use."""
    name: str = torch.cuda.get_device_name(device_index)
    return name


def choose_from_tables(
    problem: Problem,
    setting: Setting,
    families: Sequence[AnyFamily] | None = None,
    *,
    may_tune: bool = False,
) -> Choice:
    """Choose the config for a problem from a table, or else by the heuristic of one of the
    families, by default of all that are for it. With `may_tune` and
    inside a `tuning` block, a problem without a table entry is tuned first."""
    device = setting.device
    dense = DenseProblem.of(problem) or DenseProblem.like(problem)
    if dense is None:
        return _by_heuristic(
            problem,
            setting,
            "tables cover full and causal attention of 16-bit tensors only",
            families,
        )
    if isinstance(device, str):
        return look_up(dense, setting, device, families, problem)
    if device == NO_DEVICE:
        return _by_heuristic(problem, setting, "tables are for GPUs, and there is none", families)
    can_tune = may_tune and tables.tune is not None and problem.program is None
    if can_tune and not torch.cuda.is_current_stream_capturing():
        _tune_unseen(dense, setting.arch, device)
    return look_up(dense, setting, device_name(device), families, problem)


def look_up(
    dense: DenseProblem,
    setting: Setting,
    device: str,
    families: Sequence[AnyFamily] | None = None,
    asked: Problem | None = None,
) -> Choice:
    """Choose the config for a problem from the tables of this process for a model of GPU. `asked`
    is the problem that it runs, if that is one with a function."""
    asked = asked or dense.problem
    sources = list(tables.sources(device))
    usable = [source for source in sources if source.hint or source.table.device == device]
    for source in sources:
        if source not in usable and not source.shipped:
            _note_once(f"{source.name} is for {source.table.device} and is not used on {device}")
    for source in usable:
        if (entry := source.table.exact(dense)) and _fits(entry, dense, asked, setting, source):
            said = f"measured for this problem: {_said(entry, source)}"
            return Choice(entry.config, setting, Rule.TABLE, said)
    reason = f"there is no table for {device}"
    near = [(*found, s) for s in usable if (found := s.table.nearest(dense))]
    if near:
        distance, entry, source = min(near, key=lambda item: item[0])
        reason = f"the nearest entry is {entry.problem}, {distance:.2f} away"
        if distance > MAX_DISTANCE:
            reason += f", over {MAX_DISTANCE}"
        elif entry.keeps_heuristic:
            reason += ", and no config was faster there"
        elif not (family := family_of(entry.config)).reaches(
            entry.config, dense.problem, setting.arch
        ):
            reason += ", and tiles of its config fit these lengths less well"
        elif family.extrapolates and _fits(entry, dense, asked, setting, source):
            said = f"{reason}: {_said(entry, source)}"
            return Choice(entry.config, setting, Rule.TABLE, said)
    elif usable:
        reason = f"no entry has this {dense.kind_words}"
    elif sources:
        reason += f"; {sources[0].name} is for {sources[0].table.device}"
    return _by_heuristic(asked, setting, reason, families)


def _tune_unseen(dense: DenseProblem, arch: Arch, device_index: int) -> None:
    device = device_name(device_index)
    seen = any(
        source.table.device == device and source.table.exact(dense)
        for source in tables.sources(device)
    )
    if seen or tables.tune is None:
        return
    if entry := tables.tune(dense, arch, device_index):
        tables.tuned[device] = tables.tuned.get(device, Table(device)).with_entries([entry])


def _by_heuristic(
    problem: Problem, setting: Setting, why: str, families: Sequence[AnyFamily] | None
) -> Choice:
    config = select_config(problem, setting.arch, families)
    return Choice(config, setting, Rule.HEURISTIC, f"heuristic: {why}")


def _said(entry: Entry, source: Source) -> str:
    hint = f", a hint from {source.table.device}" if source.hint else ""
    return (
        f"{entry.ms:.4g} ms, the heuristic's {entry.heuristic_ms:.4g} ms"
        f" ({source.name}, {entry.when[:10]}{hint})"
    )


def _fits(
    entry: Entry, dense: DenseProblem, asked: Problem, setting: Setting, source: Source
) -> bool:
    """Whether the config of an entry runs a problem here. Why not is noted."""
    why = dense.refusal(entry.config, setting.arch)
    if why is not None:
        _note_once(f"{source.name}: {entry.config.short_form()} is ignored: {why}")
        return False
    family = family_of(entry.config)
    return asked.program is None or (family.has_functions and family.has_room(entry.config, asked))


@cache
def _note_once(message: str) -> None:
    logger.warning(message)


def check_device(table: Table, name: str) -> None:
    """Raise UnsupportedError if this machine has no GPU of the table's model."""
    here = {device_name(index) for index in range(torch.cuda.device_count())}
    if here and table.device not in here:
        raise UnsupportedError(
            f"{name} is for {table.device}, this machine has {', '.join(sorted(here))}: the"
            " fastest configs may differ here; tune on this device with `flash-attention tune`, or"
            " pass hint=True to use it anyway"
        )
