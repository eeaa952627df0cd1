# SPDX-License-Identifier: Apache-2.0
"""The ladder: a bar a rung, which opens to what the rung changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flash_attention_workbench.bench import results
from flash_attention_workbench.bench.comparison import FA2, Comparison, Entry, compare_file
from flash_attention_workbench.bench.grid_record import grid_rows
from flash_attention_workbench.bench.grid_run import RIVALS
from flash_attention_workbench.bench.grid_summary import NAMES, speed
from flash_attention_workbench.bench.statistics import harmonic_mean
from flash_attention_workbench.bench.stored import Stored, newest, of_kind
from flash_attention_workbench.report import plane
from flash_attention_workbench.report.markup import Markup, element, join, table
from flash_attention_workbench.report.rungs import Ladder, RungText
from flash_attention_workbench.report.section import Section, lead, numbers
from flash_attention_workbench.report.sections.rung_panel import (
    counter_tables,
    panel,
    profile_tables,
    speed_table,
)

_BAR_HEIGHT, _LABEL_HEIGHT = 26.0, 15.0
_ROOM = 1.04  # the axis ends a little beyond the fastest


@dataclass(frozen=True)
class Mark:
    """A peer at the ladder's shapes: its harmonic mean, drawn as a line through all bars."""

    name: str
    class_: str
    tflops: float


def ladder_section(stored: Sequence[Stored], ladder: Ladder) -> Section:
    """Every measured rung; its panel also shows the emulator's counters where they are stored."""
    found = newest(stored, ladder.measured)
    if found is None:
        return _unmeasured(stored, ladder)
    measured, comparison = compare_file(found.path)
    emulated = newest(stored, ladder.emulated)
    profile = newest(stored, ladder.profiled) if ladder.profiled else None
    counted, profiled = rows_by_rung(emulated), rows_by_rung(profile)
    texts: dict[tuple[int | None, str], RungText]
    texts = {(rung.number, rung.name): rung for rung in ladder.rungs}
    peers, peer_file = marks(measured, comparison, stored, ladder.grid)
    entries = [entry for entry in comparison.entries if entry.name != FA2]
    speeds = [entry.mean_tflops for entry in entries] + [peer.tflops for peer in peers]
    scale = plane.Scale((0, _ROOM * max(speeds)), (0, 100))
    rows = []
    for entry in entries:
        before = comparison.before(entry)
        content = row_cells(entry, before, scale, peers)
        text = texts.get((entry.number, entry.name))
        if text is None:
            rows.append(element("div", content, class_="rung other"))
            continue
        tables = [
            speed_table(comparison, entry, before),
            *profile_tables(profiled, entry.number),
            *counter_tables(counted, entry.number),
        ]
        rows.append(_rung(ladder, text, content, tables, label=_label(entry)))
    about = lead(
        f"{measured.dtype}, {measured.n_heads} heads of {measured.d_head}, {measured.pass_}, "
        f"{'causal' if measured.causal else 'no'} mask, {measured.device}. Every rung is the one "
        "above it with one field of its config changed; bars are TFLOP/s, harmonic mean over "
        f"{_lengths(comparison)} rows. The strong part of a bar is what the rung added, a hollow "
        "one what it lost. Open a rung for its source and its counters."
    )
    chart = element(
        *("div", _heading(scale, peers), *rows),
        class_="ladder",
        role="group",
        aria_label=ladder.title,
    )
    sources = [found.path.name] + [one.path.name for one in (emulated, profile, peer_file) if one]
    body = join((about, chart, numbers(_table(comparison))))
    return Section(ladder.anchor, ladder.title, body, sources=tuple(sources))


def _unmeasured(stored: Sequence[Stored], ladder: Ladder) -> Section:
    """The rungs without speeds, if the emulator counted them."""
    missing = (
        f"{ladder.title} was not measured: `flash-attention ladder run{ladder.option} --json FILE`"
        " on a GPU does."
    )
    emulated = newest(stored, ladder.emulated)
    if emulated is None:
        return Section(ladder.anchor, ladder.title, None, missing)
    counted = rows_by_rung(emulated)
    rows = []
    for rung in ladder.rungs:
        cells = (
            element("span", rung.number, class_="no"),
            element("span", rung.name, class_="name"),
            element("span", rung.change, class_="change"),
        )
        tables = counter_tables(counted, rung.number)
        rows.append(
            _rung(ladder, rung, join(cells), tables, label=f"Rung {rung.number}, {rung.name}")
        )
    about = lead(
        "Every rung is the one above it with one field of its config changed. Open a rung for its "
        "kernels, its source and its counters."
    )
    chart = element("div", *rows, class_="ladder", role="group", aria_label=ladder.title)
    body = join((element("p", missing, class_="missing"), about, chart))
    return Section(ladder.anchor, ladder.title, body, missing, (emulated.path.name,))


def rows_by_rung(stored: Stored | None) -> dict[int, Mapping[str, Any]]:
    """The rows of a results file that has one a rung."""
    return {row["rung"]: row for row in stored.record["rows"]} if stored else {}


def marks(
    measured: results.Results, comparison: Comparison, stored: Sequence[Stored], grid: str
) -> tuple[list[Mark], Stored | None]:
    """FA2 of the same run; FA3 and cuDNN if a grid has them at all of the ladder's shapes."""
    fa2 = next(entry for entry in comparison.entries if entry.name == FA2)
    found = [Mark(FA2, "fa2", fa2.mean_tflops)]
    wanted = {
        (batch, seq, measured.n_heads, measured.d_head, measured.causal)
        for batch, seq in comparison.shapes
    }
    for one in of_kind(stored, grid):
        rows = [row for row in grid_rows(one.record) if row.measured.lower() == measured.pass_]
        here = [r for r in rows if (r.batch, r.seq, r.heads, r.d, r.causal) in wanted]
        if one.record["dtype"] != measured.dtype or len(here) != len(wanted):
            continue
        for name in RIVALS:
            if all(name in row.peers for row in here):
                speeds = [speed(row, row.peers[name]) for row in here]
                found.append(Mark(NAMES[name], name, harmonic_mean(speeds)))
        return found, one
    return found, None


def row_cells(
    entry: Entry, before: Entry | None, scale: plane.Scale, peers: Sequence[Mark]
) -> Markup:
    """Number, name, bar, and the numbers beside it."""
    gain = _gain(entry, before)
    kind = "" if gain is None else "up" if gain >= 0.005 else "down" if gain <= -0.005 else ""
    return join(
        (
            element("span", "" if entry.number is None else entry.number, class_="no"),
            element("span", entry.label, class_="name"),
            bar(entry, before, scale, peers),
            element("span", f"{entry.mean_tflops:.0f}", class_="speed"),
            element("span", _signed(gain), class_=f"gain {kind}".strip()),
            element("span", f"{100 * entry.mean_of_fa2:.0f} %", class_="share"),
        )
    )


def bar(entry: Entry, before: Entry | None, scale: plane.Scale, peers: Sequence[Mark]) -> Markup:
    """From 0 to the speed; the part above or below the rung before stands out."""
    speed = scale(entry.mean_tflops)
    earlier = speed if before is None or entry.number is None else scale(before.mean_tflops)
    top, height = 5.0, _BAR_HEIGHT - 10
    parts = [plane.box(0, top, min(speed, earlier), height, "bar")]
    if speed > earlier:
        parts.append(plane.box(earlier, top, speed - earlier, height, "bar gained"))
    elif speed < earlier:
        parts.append(plane.box(speed, top + 0.5, earlier - speed, height - 1, "bar lost"))
    parts += [
        plane.line(scale(peer.tflops), 0, scale(peer.tflops), _BAR_HEIGHT, f"mark {peer.class_}")
        for peer in peers
    ]
    return plane.svg(_BAR_HEIGHT, *parts)


def _gain(entry: Entry, before: Entry | None) -> float | None:
    if before is None or entry.number is None:
        return None
    return entry.mean_tflops / before.mean_tflops - 1


def _signed(gain: float | None) -> str:
    if gain is None:
        return ""
    rounded = round(100 * gain)
    return f"{rounded:+d} %" if rounded else "0 %"


def _label(entry: Entry) -> str:
    return (
        f"Rung {entry.number}, {entry.name}: {entry.mean_tflops:.0f} TFLOP/s, "
        f"{100 * entry.mean_of_fa2:.0f} percent of FA2"
    )


def _rung(
    ladder: Ladder, rung: RungText, content: Markup, tables: Sequence[Markup], *, label: str
) -> Markup:
    class_, newer = "rung", ladder.newer_family
    if rung.number in newer:
        class_ += " newer begins" if rung.number == min(newer) else " newer"
    summary = element("summary", content, aria_label=label)
    opened = panel(rung, tables)
    return element("details", summary, opened, id=ladder.place(rung.number), class_=class_)


def _heading(scale: plane.Scale, peers: Sequence[Mark]) -> Markup:
    """The peers' names over their lines, each on a line of its own, and the axis."""
    ordered = sorted(peers, key=lambda peer: -peer.tflops)  # so no line meets a name
    bottom = _LABEL_HEIGHT * len(ordered) + 18
    parts = []
    for place, peer in enumerate(ordered):
        x, y = scale(peer.tflops), _LABEL_HEIGHT * (place + 1) - 3
        side = "end" if x > 30 else "start"
        words = f"{peer.name} {peer.tflops:.0f}"
        parts.append(plane.line(x, y - 9, x, bottom, f"mark {peer.class_}"))
        offset = -5 if side == "end" else 5
        parts.append(plane.text(x, y, words, f"peer {peer.class_}", anchor=side, dx=offset))
    for tick in plane.nice_ticks(scale.domain[1]):
        x = scale(tick)
        anchor = "start" if tick == 0 else "middle"
        parts.append(plane.text(x, bottom - 4, f"{tick:g}", "tick", anchor=anchor))
    return element(
        "div",
        element("span", class_="no"),
        element("span", "rung", class_="name"),
        plane.svg(bottom, *parts),
        element("span", "TFLOP/s", class_="speed"),
        element("span", "step", class_="gain"),
        element("span", "of FA2", class_="share"),
        class_="rung heading",
        aria_hidden="true",
    )


def _lengths(comparison: Comparison) -> str:
    lengths = [seq for _, seq in comparison.shapes]
    return f"{lengths[0]:,}" if len(lengths) == 1 else f"{min(lengths):,} to {max(lengths):,}"


def _table(comparison: Comparison) -> Markup:
    header = ["rung", "change", *(f"{b} x {s}" for b, s in comparison.shapes), "mean", "of FA2"]
    rows = [
        [
            entry.title,
            entry.change,
            *(f"{speed:.0f}" for speed in entry.tflops),
            f"{entry.mean_tflops:.0f}",
            f"{100 * entry.mean_of_fa2:.1f} %",
        ]
        for entry in comparison.entries
    ]
    return table(header, rows, caption="TFLOP/s by batch x rows", left=2)
