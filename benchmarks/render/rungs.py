# SPDX-License-Identifier: Apache-2.0
"""The blocks of docs/ladder.md: code, machine code, counters and speed of every rung."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.render.blocks import replace_block, table, wrap
from flash_attention.call.dtype import DType
from flash_attention.compile.includes import include_closure
from flash_attention.errors import UnsupportedError
from flash_attention.families.registry import unit_of
from flash_attention.ladder import FAMILY, Rung, get_ladder
from flash_attention.tools.bench import results
from flash_attention.tools.bench.comparison import (
    SHOWN_OPCODES,
    Comparison,
    Entry,
    compare,
    opcode_changes,
    percent_change,
)
from flash_attention.tools.bench.stored import EMULATED, LADDER, PROFILE, Stored, newest

HEADERS = "../src/flash_attention/include/"  # from docs/
SHOWN_HEADERS = 6
_SETTING = "rungs"
_PARTS = "parts"  # a change in percent
_RESOURCES = {
    "registers": "registers per thread",
    "spilled_bytes": "spilled bytes",
    "shared_bytes": "shared memory, bytes",
    "ctas_per_sm": "CTAs per SM",
}


@dataclass(frozen=True)
class Step:
    """What is known of a rung: its speeds, the emulator's row and Nsight Compute's."""

    rung: Rung
    speeds: Entry
    counted: Mapping[str, Any]
    profiled: Mapping[str, Any]

    @property
    def instructions(self) -> int:
        return sum(self.counted["opcodes"].values())


def render_rungs(text: str, stored: Sequence[Stored]) -> str:
    """`text` with the block of every rung, and the one that says where the numbers are from."""
    sources = {kind: newest(stored, kind) for kind in (LADDER, EMULATED, PROFILE)}
    found = {kind: one for kind, one in sources.items() if one is not None}
    if missing := [kind for kind in sources if kind not in found]:
        raise UnsupportedError(f"the rungs need results that are missing: {', '.join(missing)}")
    measured = results.load(found[LADDER].path)
    comparison = compare(measured)
    steps = _steps(measured, comparison, found[EMULATED].record, found[PROFILE].record)
    text = replace_block(text, _SETTING, _setting(measured, found[EMULATED].record))
    for before, step in zip((None, *steps), steps, strict=False):
        if before is not None and (same_mask := comparison.before(step.speeds)) is not None:
            before = replace(before, speeds=same_mask)
        name = f"rung-{step.rung.number}"
        text = replace_block(text, name, wrap(name, _lines(before, step, comparison)))
    return text


def config_diff(before: Rung, after: Rung) -> list[str]:
    """The lines of `struct Config` that differ, as a diff."""
    old, new = (_config_lines(unit_of(rung.config).source) for rung in (before, after))
    lines = difflib.unified_diff(old, new, n=0, lineterm="")
    return [line for line in lines if line[:3] not in ("---", "+++") and line[:1] in "+-"]


def header_changes(before: Rung, after: Rung) -> tuple[list[str], list[str]]:
    """The headers that `after` includes and `before` does not, and the other way round."""
    old, new = (set(include_closure(unit_of(r.config).source)) for r in (before, after))
    return sorted(new - old), sorted(old - new)


def _steps(
    measured: results.Results,
    comparison: Comparison,
    emulated: Mapping[str, Any],
    profile: Mapping[str, Any],
) -> list[Step]:
    speeds = {entry.number: entry for entry in comparison.entries}
    counted, profiled = (
        {row["rung"]: row for row in record["rows"]} for record in (emulated, profile)
    )
    rungs = get_ladder(DType.from_string(measured.dtype), measured.d_head, measured.n_heads)
    for what, known in ((LADDER, speeds), (EMULATED, counted), (PROFILE, profiled)):
        if absent := [str(rung.number) for rung in rungs if rung.number not in known]:
            raise UnsupportedError(
                f"the {what} results lack rung {', '.join(absent)}; CONTRIBUTING.md has the "
                "commands that measure every rung"
            )
    return [Step(r, speeds[r.number], counted[r.number], profiled[r.number]) for r in rungs]


def _setting(measured: results.Results, emulated: Mapping[str, Any]) -> str:
    batch, seq, heads, d_head = emulated["shape"]
    arches = ", ".join(dict.fromkeys(row["arch"] for row in emulated["rows"]))
    return wrap(
        _SETTING,
        (
            f"Speeds: {measured.device}, {measured.dtype}, {measured.n_heads} heads of "
            f"{measured.d_head}, commit {measured.commit}; TFLOP/s are harmonic means over the "
            f"lengths. Machine code: NVRTC {emulated['nvrtc']} for {arches}, commit "
            f"{emulated['commit']}. Emulated: batch {batch}, {seq} rows, {heads} heads of "
            f"{d_head}.",
        ),
    )


def _lines(before: Step | None, step: Step, comparison: Comparison) -> list[str]:
    idea = step.rung.idea
    lines = [f"{idea[0].upper()}{idea[1:]}.", ""]
    if before is not None:
        lines += [*_code(before.rung, step.rung), ""]
    lines += [*_numbers(before, step), ""]
    lines.append(_opcodes(before, step))
    if before is not None:
        pairs = zip(comparison.shapes, before.speeds.tflops, step.speeds.tflops, strict=True)
        cells = [f"{seq} {percent_change(new / old)}" for (_, seq), old, new in pairs]
        lines += ["", f"Change of speed by sequence length: {', '.join(cells)}."]
    return lines


def _code(before: Rung, after: Rung) -> list[str]:
    came, went = header_changes(before, after)
    if after.field == FAMILY:
        show = f"`flash-attention ladder show {after.number}` prints the rung as one file"
        return [f"It adds {len(came)} headers and drops {len(went)}: {show}."]
    lines = ["```diff", *config_diff(before, after), "```", ""]
    if not came and not went:
        return [*lines, "The headers are the same."]
    return [*lines, f"Headers added: {_links(came)}. Headers dropped: {_links(went)}."]


def _links(names: Sequence[str]) -> str:
    shown = [f"[{name.removeprefix('fa/')}]({HEADERS}{name})" for name in names[:SHOWN_HEADERS]]
    more = len(names) - SHOWN_HEADERS
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "") or "none"


def _numbers(before: Step | None, step: Step) -> list[str]:
    """The rows that say something: speed and instructions always, the others where they change."""
    rows = [
        _row("TFLOP/s", _speed(before), _speed(step), _PARTS, "{:.1f}"),
        _row("tensor pipe, % of cycles", _pipe(before), _pipe(step), "{:+.1f}", "{:.1f}"),
        _row(
            f"{step.counted['language']} instructions",
            before.instructions if before else None,
            step.instructions,
            _PARTS,
        ),
    ]
    for key, label in _RESOURCES.items():
        old, new = before.counted[key] if before else None, step.counted[key]
        if old != new and (before or new):
            rows.append(_row(label, old, new, "{:+,}"))
    for key, new in step.counted["emulated"].items():
        old = before.counted["emulated"][key] if before else None
        if key not in ("error", "allowed") and old != new:
            form = "{:,.2f}" if "/ " in key and new < 1000 else "{:,.0f}"
            rows.append(_row(f"emulated: {key}", old, new, _PARTS, form))
    if before is None:
        return table(["", _title(step.rung)], [[row[0], row[2]] for row in rows], left=1)
    return table(["", _title(before.rung), _title(step.rung), "change"], rows, left=1)


def _speed(step: Step | None) -> float | None:
    return step.speeds.mean_tflops if step else None


def _pipe(step: Step | None) -> float | None:
    return step.profiled["tensor pipe %"] if step else None


def _row(
    label: str, old: float | None, new: float | None, change: str, form: str = "{:,}"
) -> list[str]:
    """Label, before, here, and the change: a difference, or for `_PARTS` a part of `old`."""
    assert new is not None
    if old is None:
        return [label, "", form.format(new), ""]
    shown = percent_change(new / old) if change == _PARTS else change.format(new - old)
    return [label, form.format(old), form.format(new), "=" if new == old else shown]


def _opcodes(before: Step | None, step: Step) -> str:
    if before is None:
        often = sorted(step.counted["opcodes"].items(), key=lambda item: (-item[1], item[0]))
        names = [f"{count} `{name}`" for name, count in often[:SHOWN_OPCODES]]
        return f"The most frequent instructions: {', '.join(names)}."
    if step.counted["same_code"]:
        return "The machine code equals that of the rung before, byte for byte."
    changes = opcode_changes(before.counted["opcodes"], step.counted["opcodes"])
    if not changes:
        return "Every instruction occurs as often as before; their order or their modifiers differ."
    names = [f"`{name}` {change:+d}" for name, change in list(changes.items())[:SHOWN_OPCODES]]
    more = len(changes) - SHOWN_OPCODES
    return "Instructions: " + ", ".join(names) + (f", and {more} more." if more > 0 else ".")


def _title(rung: Rung) -> str:
    return f"{rung.number} {rung.name}"


def _config_lines(unit: str) -> list[str]:
    return unit.partition("struct Config {\n")[2].partition("\n};")[0].splitlines()
