# SPDX-License-Identifier: Apache-2.0
"""Score and mask functions: what `flash-attention bench --grid functions` measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.render.blocks import table, wrap
from flash_attention_workbench.bench.function_case import OURS
from flash_attention_workbench.bench.function_costs import IMPORT, KEPT, NEW
from flash_attention_workbench.bench.function_run import (
    CostsRecord,
    FunctionRow,
    costs_record,
    functions_record,
    ratios_words,
)
from flash_attention_workbench.bench.functions import FUNCTIONS, KINDS
from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.peers.flex_functions import FLEX

NAMES = {OURS: "ours", FLEX: "flex_attention"}
COSTS = "function-costs"  # the block of a record without speeds


def functions_name(record: Mapping[str, Any]) -> str:
    """The block that a record of functions belongs into."""
    return FUNCTIONS if record["rows"] else COSTS


def functions_block(record: Mapping[str, Any], where: str) -> str:
    """The speed of every function beside the built-in kernels and flex_attention, and what planning
    and first calls cost."""
    if not record["rows"]:
        return wrap(COSTS, [f"{where}.", *_costs(costs_record(record))])
    stored = functions_record(record)
    lines = [
        f"{where}. BF16, 16k tokens in all, heads x d = 2048; medians of {stored.repeats}"
        f" interleaved runs with L2 {stored.l2}. TFLOP/s count the keys that queries see. Our time"
        " is a multiple of that of the built-in kernel that shows the same keys, and our speed a"
        " multiple of that of torch's flex_attention, compiled, with its block mask made"
        " beforehand. Ratios are in the order of the lengths."
    ]
    for measured in dict.fromkeys(row.measured for row in stored.rows):
        some = [row for row in stored.rows if row.measured == measured]
        lines += ["", *_speeds(some, Measured[measured].words)]
        if words := ratios_words(some):
            lines += ["", f"Geometric means, {Measured[measured].words}: {words}."]
    lines += ["", *said] if (said := list(dict.fromkeys(_notes(stored.rows)))) else []
    return wrap(FUNCTIONS, [*lines, *_costs(stored)])


def _costs(stored: CostsRecord) -> list[str]:
    """What planning and first calls cost, as far as that was measured."""
    plans = ["", *_plans(stored)] if stored.plans_ms else []
    return [*plans, *(["", *_first_calls(stored)] if stored.first_calls else [])]


def _speeds(rows: Sequence[FunctionRow], words: str) -> list[str]:
    """A line for every function and head dimension."""
    lengths = sorted({row.seq for row in rows})
    found = {(row.function, row.d, row.seq): row for row in rows}
    lines = []
    for function, d in dict.fromkeys((row.function, row.d) for row in rows):
        some = [found.get((function, d, seq)) for seq in lengths]
        speeds = [_speed(row) for row in some]
        ratios = [
            _joined(row.of_built_in if row else None for row in some),
            _joined(row.of_flex if row else None for row in some),
        ]
        lines.append([KINDS[function].words, str(d), *speeds, *ratios])
    order = {kind.words: place for place, kind in enumerate(KINDS.values())}
    lines.sort(key=lambda line: (order[line[0]], int(line[1])))
    named = [f"{seq:,} rows" for seq in lengths]
    header = [f"{words}, TFLOP/s", "d", *named, "time, built-in = 1", "speed, flex = 1"]
    return table(header, lines, left=1)


def _speed(row: FunctionRow | None) -> str:
    if row is None:
        return ""
    return "wrong" if row.tflops is None else f"{row.tflops:.0f}"


def _joined(ratios: Iterable[float | None]) -> str:
    """Ratios in one cell, with a dash for one that is not known; nothing if none is."""
    told = ["-" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
    return " ".join(told) if set(told) != {"-"} else ""


def _notes(rows: Iterable[FunctionRow]) -> Iterator[str]:
    refused: dict[str, list[str]] = {}  # the problems, by why
    for row in rows:
        if row.note:
            yield f"{KINDS[row.function].words}: {row.note}."
        if FLEX in row.refused:
            why = row.refused[FLEX].partition(", and the bias has")[0].partition(". ")[0]
            what = f"{KINDS[row.function].words} at d {row.d} with {row.seq:,} rows"
            refused.setdefault(why, []).append(what)
    for why, problems in refused.items():
        yield f"No {NAMES[FLEX]} for {', '.join(dict.fromkeys(problems))}: {why}."


def _plans(stored: CostsRecord) -> list[str]:
    """How long the planning of blocks takes."""
    tokens = list(dict.fromkeys(count for of in stored.plans_ms.values() for count in of))
    rows = [
        [name, *(f"{of[count]:.4f}" if count in of else "" for count in tokens)]
        for name, of in stored.plans_ms.items()
    ]
    named = [f"{int(count):,} tokens" for count in tokens]
    return table(["planning of blocks, ms", *named], rows, left=1)


def _first_calls(stored: CostsRecord) -> list[str]:
    """How long first calls take, by what was called."""
    columns = [(who, how) for who in stored.first_calls for how in (NEW, KEPT)]
    every = (of for by in stored.first_calls.values() for of in by.values())
    called = list(dict.fromkeys(name for of in every for name in of))
    rows = []
    for name in called:
        cells = [stored.first_calls[who].get(how, {}).get(name) for who, how in columns]
        rows.append([name, *("" if ms is None else f"{ms:,.0f}" for ms in cells)])
    header = ["first call, ms", *(f"{NAMES[who]}, {how}" for who, how in columns)]
    told = (
        f"A new function finds empty caches. {IMPORT.capitalize()} is that of this package once"
        " torch is there, or of torch itself; the calls come after it."
    )
    return [*table(header, rows, left=1), "", told]
