# SPDX-License-Identifier: Apache-2.0
"""The tuner's landscape: at every point, how far from the best each config is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from flash_attention_workbench.bench.stored import Stored
from flash_attention_workbench.report import plane
from flash_attention_workbench.report.markup import Markup, element, join, table
from flash_attention_workbench.report.section import Section, lead, numbers
from flash_attention_workbench.report.trials import Point, Trial, best, trials_of

ANCHOR, TITLE = "landscape", "The landscape of configs"
_ROW = 22.0
_SPAN = (1.5, 97.5)


def landscape_section(stored: Sequence[Stored]) -> Section:
    """A strip a point, a dot a config."""
    points, files = trials_of(stored)
    if not points:
        missing = (
            "No timings of several configs at one point: `flash-attention report --tuner FILE` "
            "reads a tuner's store."
        )
        return Section(ANCHOR, TITLE, None, missing)
    slowest = min(best(trials).ms / trial.ms for trials in points.values() for trial in trials)
    floor = min(0.9, int(10 * slowest) / 10)
    scale = plane.Scale((floor, 1), _SPAN)
    names = _names(points)
    strips = [_strip(names[point], trials, scale) for point, trials in points.items()]
    tried = len({trial.config for trials in points.values() for trial in trials})
    about = lead(
        f"{tried} configs at {len(points)} points. A dot is one config, placed by its speed as a "
        f"part of the best at that point; the axis begins at {100 * floor:.0f} %, not at 0. ",
        element("span", class_="key chosen"),
        "the config that is run unless another is asked for. Point at a dot for its name.",
    )
    chart = element("div", _axis(scale, floor), *strips, class_="strips")
    body = join((about, chart, numbers(_table(points, names))))
    return Section(ANCHOR, TITLE, body, sources=files)


def _strip(name: str, trials: Sequence[Trial], scale: plane.Scale) -> Markup:
    fastest = best(trials)
    middle = _ROW / 2
    parts = [plane.line(_SPAN[0], middle, _SPAN[1], middle, "grid")]
    for trial in sorted(trials, key=lambda trial: (trial.chosen, trial.config)):
        share = fastest.ms / trial.ms
        tip = f"{100 * share:.1f} %, {trial.ms:.4g} ms: {trial.config}"
        class_ = "trial chosen" if trial.chosen else "trial"
        parts.append(plane.dot(scale(share), middle, 5 if trial.chosen else 4, class_, tip))
    label = f"{name}: {len(trials)} configs, the slowest {_slowest(trials)} of the best"
    return element(
        "div",
        element("span", name, class_="name", title=name),
        plane.svg(_ROW, *parts, label=label),
        class_="strip",
    )


def _axis(scale: plane.Scale, floor: float) -> Markup:
    tenths = range(round(10 * floor), 11)
    anchors = {tenths[0]: "start", 10: "end"}
    parts = [
        plane.text(
            scale(t / 10),
            13,
            f"{10 * t} %",
            "tick" if t % 5 == 0 else "tick minor",
            anchor=anchors.get(t, "middle"),
        )
        for t in tenths
    ]
    name = element("span", "d, mask, rows", class_="name")
    return element("div", name, plane.svg(18, *parts), class_="strip")


def _slowest(trials: Sequence[Trial]) -> str:
    return f"{100 * best(trials).ms / max(trial.ms for trial in trials):.0f} %"


def _place(point: Point) -> str:
    return f"{point.d_head} {'causal' if point.causal else 'full'} {point.rows:,}"


def _names(points: Iterable[Point]) -> dict[Point, str]:
    """Short names, with batch and heads where they would be those of several points."""
    short = {point: f"{_place(point)} {point.gradients}".rstrip() for point in points}
    often = Counter(short.values())
    return {
        point: name if often[name] == 1 else f"{name}, {point.batch} x {point.heads} h"
        for point, name in short.items()
    }


def _table(points: Mapping[Point, Sequence[Trial]], names: Mapping[Point, str]) -> Markup:
    rows = []
    for point, trials in points.items():
        fastest = best(trials)
        chosen = next((trial for trial in trials if trial.chosen), None)
        share = f"{100 * fastest.ms / chosen.ms:.1f} %" if chosen else ""
        rows.append([names[point], fastest.config, len(trials), f"{fastest.ms:.4g}", share])
    header = ["d, mask, rows", "fastest config", "configs", "its ms", "the one run"]
    return table(header, rows, caption="The best of every point", left=2)
