# SPDX-License-Identifier: Apache-2.0
"""What opens below a rung: speeds by length, counters, instructions, and the source diff."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flash_attention_workbench.bench.comparison import (
    SHOWN_OPCODES,
    Comparison,
    Entry,
    opcode_changes,
    percent_change,
)
from flash_attention_workbench.report.markup import Markup, element, join, table
from flash_attention_workbench.report.rungs import RungText

_RESOURCES = {
    "registers": "registers a thread",
    "spilled_bytes": "spilled bytes",
    "shared_bytes": "shared memory, bytes",
    "ctas_per_sm": "CTAs per SM",
}
_LINE_CLASSES = {"+": "added", "-": "deleted", "@": "hunk"}

Rows = Mapping[int, Mapping[str, Any]]


def panel(rung: RungText, tables: Sequence[Markup]) -> Markup:
    """The idea, the launches, what was measured and counted, and the source."""
    change = element("code", rung.change) if rung.change else ""
    launches = [_launches(rung)] if rung.launches else []
    return element(
        "div",
        element("p", rung.idea[0].upper() + rung.idea[1:] + ". ", change, class_="idea"),
        element("div", *tables, *launches, class_="facts"),
        source(rung),
        class_="panel",
    )


def source(rung: RungText) -> Markup:
    """The diff with its lines told apart; the first rung has none."""
    if not rung.diff:
        words = "The first rung: `flash-attention ladder show 1` prints it as one file."
        return element("p", words, class_="note")
    lines = rung.diff.splitlines()[2:]  # without the two names
    shown = join(
        element("span", line, class_=_LINE_CLASSES.get(line[:1], "same")) for line in lines
    )
    added = sum(line.startswith("+") for line in lines)
    deleted = sum(line.startswith("-") for line in lines)
    title = f"Source: {added:,} lines in, {deleted:,} out"
    code = element("pre", element("code", shown), class_="diff", tabindex=0, aria_label=title)
    return join((element("p", title, class_="note"), code))


def profile_tables(profiled: Rows, number: int | None) -> list[Markup]:
    """What Nsight Compute measured of a rung, by the rungs' numbers."""
    if number is None or number not in profiled:
        return []
    return [_profile(profiled[number], profiled.get(number - 1))]


def counter_tables(counted: Rows, number: int | None) -> list[Markup]:
    """What compiler and emulator counted of a rung, by the rungs' numbers."""
    if number is None or number not in counted:
        return []
    here, earlier = counted[number], counted.get(number - 1)
    return [_counters(here, earlier), _instructions(here, earlier)]


def _launches(rung: RungText) -> Markup:
    rows = [
        [
            launch.kernel if launch.times == 1 else f"{launch.kernel}, {launch.times} times",
            *(f"{n:,}" for n in (launch.ctas, launch.threads, launch.shared_bytes)),
        ]
        for launch in rung.launches
    ]
    header = ["kernel", "CTAs", "threads", "shared memory, bytes"]
    return table(header, rows, caption=f"Launched for {rung.launched_for}")


def speed_table(comparison: Comparison, entry: Entry, before: Entry | None) -> Markup:
    """The speeds of a rung by batch and length."""
    rows = [
        [
            f"{batch} x {seq:,}",
            f"{entry.tflops[place]:.0f}",
            percent_change(entry.tflops[place] / before.tflops[place]) if before else "",
            f"{100 * entry.of_fa2[place]:.0f} %",
        ]
        for place, (batch, seq) in enumerate(comparison.shapes)
    ]
    return table(["batch x rows", "TFLOP/s", "step", "of FA2"], rows, caption="Measured")


def _profile(here: Mapping[str, Any], before: Mapping[str, Any] | None) -> Markup:
    rows = [
        [name, _count(before[name]) if before else "", _count(value)]
        for name, value in here.items()
        if name not in ("rung", "name")
    ]
    return table(
        ["", "before", "here"], rows, caption="Nsight Compute; waits are warps stalled an issue"
    )


def _counters(here: Mapping[str, Any], before: Mapping[str, Any] | None) -> Markup:
    rows = [
        [label, f"{before[key]:,}" if before else "", f"{here[key]:,}"]
        for key, label in _RESOURCES.items()
    ]
    for name, value in here["emulated"].items():
        if name in ("error", "allowed"):
            continue
        earlier = before["emulated"][name] if before else None
        rows.append([name, "" if earlier is None else _count(earlier), _count(value)])
    error = here["emulated"]["error"] / here["emulated"]["allowed"]
    rows.append(["error, of allowed", "", f"{100 * error:.0f} %"])
    caption = f"Compiled for {here['arch']} and emulated"
    return table(["", "before", "here"], rows, caption=caption)


def _instructions(here: Mapping[str, Any], before: Mapping[str, Any] | None) -> Markup:
    language = here["language"]
    if before is not None and here["same_code"]:
        return element("p", "The machine code is that of the rung before, byte for byte.")
    earlier = before["opcodes"] if before else {}
    changes = opcode_changes(earlier, here["opcodes"])
    if before is not None and not changes:
        return element("p", "As many of every instruction as before; order or modifiers differ.")
    rows = [
        [opcode, f"{earlier.get(opcode, 0):,}" if before else "", f"{count:,}"]
        for opcode, count in ((name, here["opcodes"].get(name, 0)) for name in changes)
    ][:SHOWN_OPCODES]
    total = f"{sum(earlier.values()):,}" if before else ""
    rows.append(["all", total, f"{sum(here['opcodes'].values()):,}"])
    caption = f"{language} instructions" + (", largest changes" if before else ", most frequent")
    return table(["", "before", "here"], rows, caption=caption)


def _count(value: float) -> str:
    return f"{value:,.2f}" if isinstance(value, float) and value < 1000 else f"{value:,.0f}"
