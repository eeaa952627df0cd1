# SPDX-License-Identifier: Apache-2.0
"""The blocks of docs/ladder.md and docs/backward_ladder.md: code, machine code, counters and speed
of every rung."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.render.blocks import replace_block, table, wrap
from flash_attention.call.dtype import DType
from flash_attention.compile.binding import defined_types
from flash_attention.compile.includes import include_closure
from flash_attention.errors import UnsupportedError
from flash_attention.families.passes import Pass
from flash_attention.families.registry import family_of, unit_of
from flash_attention.ladder import FAMILY, Rung, get_ladder
from flash_attention_workbench.bench import results
from flash_attention_workbench.bench.comparison import (
    SHOWN_OPCODES,
    Comparison,
    Entry,
    compare,
    opcode_changes,
    percent_change,
)
from flash_attention_workbench.bench.stored import (
    BACKWARD_EMULATED,
    BACKWARD_LADDER,
    EMULATED,
    LADDER,
    PROFILE,
    Stored,
    newest,
)

HEADERS = "../src/flash_attention/include/"  # from docs/
SHOWN_VARIANTS = 6
_BOUND = re.compile(r"using \w+ = fa::([\w:]+)")
_SETTING = "rungs"
_PIPE = "tensor pipe %"
_PARTS = "parts"  # a change in percent
_KINDS = {
    Pass.FORWARD: (LADDER, EMULATED, PROFILE),
    Pass.BACKWARD: (BACKWARD_LADDER, BACKWARD_EMULATED, ""),
}
"""The results with the speeds, what compiler and emulator say, and the counters, of each pass."""
_RESOURCES = {
    "registers": "registers per thread",
    "spilled_bytes": "spilled bytes",
    "shared_bytes": "shared memory, bytes",
    "ctas_per_sm": "CTAs per SM",
}


@dataclass(frozen=True)
class Step:
    """What is known of a rung: its speeds, the emulator's row and Nsight Compute's. Speeds and
    profiles of backward rungs may be missing."""

    rung: Rung
    speeds: Entry | None
    counted: Mapping[str, Any]
    profiled: Mapping[str, Any] | None

    @property
    def instructions(self) -> int:
        return sum(self.counted["opcodes"].values())


def render_rungs(text: str, stored: Sequence[Stored], pass_: Pass = Pass.FORWARD) -> str:
    """`text` with the block of every rung, and the one that says where the numbers are from."""
    of_ladder, of_emulator, of_profiler = _KINDS[pass_]
    found = {kind: newest(stored, kind) for kind in _KINDS[pass_] if kind}
    needed = [of_emulator] if pass_ is Pass.BACKWARD else list(found)
    if missing := [kind for kind in needed if found[kind] is None]:
        raise UnsupportedError(f"the rungs need results that are missing: {', '.join(missing)}")
    timed, counted, profiled = (found.get(kind) for kind in (of_ladder, of_emulator, of_profiler))
    assert counted is not None  # it is needed
    measured = results.load(timed.path) if timed else None
    comparison = compare(measured) if measured else None
    steps = _steps(measured, comparison, counted.record, profiled, pass_)
    text = replace_block(text, _SETTING, _setting(measured, counted.record))
    for before, step in zip((None, *steps), steps, strict=False):
        if before is not None and comparison and step.speeds:
            before = replace(before, speeds=comparison.before(step.speeds) or before.speeds)
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


def new_variants(before: Rung, after: Rung) -> dict[str, str]:
    """The variants that `after` binds and `before` does not, and their headers."""
    old, new = (_BOUND.findall(unit_of(r.config).source) for r in (before, after))
    return {name: defined_types()[name] for name in new if name not in old}


def _steps(
    measured: results.Results | None,
    comparison: Comparison | None,
    emulated: Mapping[str, Any],
    profile: Stored | None,
    pass_: Pass,
) -> list[Step]:
    of_ladder, of_emulator, of_profiler = _KINDS[pass_]
    speeds = {entry.number: entry for entry in comparison.entries} if comparison else {}
    counted = {row["rung"]: row for row in emulated["rows"]}
    profiled = {row["rung"]: row for row in profile.record["rows"]} if profile else {}
    dtype, d_head = emulated["dtype"], emulated["shape"][3]
    heads = {} if measured is None else {"n_heads": measured.n_heads}
    if measured is not None:
        dtype, d_head = measured.dtype, measured.d_head
    rungs = get_ladder(DType.from_string(dtype), d_head, pass_=pass_, **heads)
    known = {of_emulator: counted}
    known |= {of_ladder: speeds} if measured else {}
    known |= {of_profiler: profiled} if profile else {}
    for what, rows in known.items():
        if absent := [str(rung.number) for rung in rungs if rung.number not in rows]:
            raise UnsupportedError(
                f"the {what} results lack rung {', '.join(absent)}; CONTRIBUTING.md has the "
                "commands that measure every rung"
            )
    return [Step(r, speeds.get(r.number), counted[r.number], profiled.get(r.number)) for r in rungs]


def _setting(measured: results.Results | None, emulated: Mapping[str, Any]) -> str:
    batch, seq, heads, d_head = emulated["shape"]
    arches = ", ".join(dict.fromkeys(row["arch"] for row in emulated["rows"]))
    speeds = (
        ""
        if measured is None
        else (
            f"Speeds: {measured.device}, {measured.dtype}, {measured.n_heads} heads of "
            f"{measured.d_head}, commit {measured.commit}; TFLOP/s are harmonic means over the "
            "lengths. "
        )
    )
    return wrap(
        _SETTING,
        (
            f"{speeds}Machine code: NVRTC {emulated['nvrtc']} for {arches}, commit "
            f"{emulated['commit']}. Emulated: batch {batch}, {seq} rows, {heads} heads of "
            f"{d_head}.",
        ),
    )


def _lines(before: Step | None, step: Step, comparison: Comparison | None) -> list[str]:
    idea = step.rung.idea
    start = idea[0] if idea[1].isupper() else idea[0].upper()  # dQ stays dQ
    lines = [f"{start}{idea[1:]}.", ""]
    if before is not None:
        lines += [*_code(before.rung, step.rung), ""]
    lines += [*_numbers(before, step), ""]
    lines.append(_opcodes(before, step))
    if before is not None and comparison and before.speeds and step.speeds:
        pairs = zip(comparison.shapes, before.speeds.tflops, step.speeds.tflops, strict=True)
        cells = [f"{seq} {percent_change(new / old)}" for (_, seq), old, new in pairs]
        lines += ["", f"Change of speed by sequence length: {', '.join(cells)}."]
    return lines


def _code(before: Rung, after: Rung) -> list[str]:
    came, went = header_changes(before, after)
    if after.field == FAMILY:
        option = " --pass backward" if family_of(after.config).pass_ is Pass.BACKWARD else ""
        show = f"`flash-attention ladder show {after.number}{option}` prints the rung as one file"
        return [f"It adds {len(came)} headers and drops {len(went)}: {show}."]
    lines = ["```diff", *config_diff(before, after), "```", ""]
    variants = new_variants(before, after)
    if not variants:
        return [*lines, "The variants are the same."]
    return [*lines, f"New variants: {_links(variants)}."]


def _links(variants: Mapping[str, str]) -> str:
    links = [
        f"`{name.rpartition('::')[2]}` in [{header.removeprefix('fa/')}]({HEADERS}{header})"
        for name, header in variants.items()
    ]
    more = len(links) - SHOWN_VARIANTS
    return ", ".join(links[:SHOWN_VARIANTS]) + (f" and {more} more" if more > 0 else "")


def _numbers(before: Step | None, step: Step) -> list[str]:
    """The rows that say something: speed and instructions always, the others where they change."""
    rows = []
    if step.speeds:
        rows.append(_row("TFLOP/s", _speed(before), step.speeds.mean_tflops, _PARTS, "{:.1f}"))
    if step.profiled:
        pipe = step.profiled[_PIPE]
        rows.append(_row("tensor pipe, % of cycles", _pipe(before), pipe, "{:+.1f}", "{:.1f}"))
    instructions = before.instructions if before else None
    label = f"{step.counted['language']} instructions"
    rows.append(_row(label, instructions, step.instructions, _PARTS))
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
    return step.speeds.mean_tflops if step and step.speeds else None


def _pipe(step: Step | None) -> float | None:
    return step.profiled[_PIPE] if step and step.profiled else None


def _row(label: str, old: float | None, new: float, change: str, form: str = "{:,}") -> list[str]:
    """Label, before, here, and the change: a difference, or for `_PARTS` a part of `old`."""
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
