# SPDX-License-Identifier: Apache-2.0
"""A plane to draw on: x in percent of whatever width there is, y in pixels.

Text so keeps its size on a phone and on a wide screen, and nothing has to be scaled.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from flash_attention_workbench.report.markup import Markup, element


@dataclass(frozen=True)
class Scale:
    """Values of `domain` on `span`; on a logarithmic scale equal ratios are equally far apart."""

    domain: tuple[float, float]
    span: tuple[float, float]
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log2(v) if self.log else v for v in (*self.domain, value))
        start, end = self.span
        return start + (end - start) * (at - low) / (high - low)


def percent(value: float) -> str:
    return f"{value:.2f}%"


def pixels(value: float) -> str:
    return f"{value:.1f}"


def nice_ticks(top: float, at_most: int = 5) -> list[float]:
    """Round numbers from 0 up to `top`."""
    rough = top / at_most
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * times for times in (1, 2, 2.5, 5, 10) if unit * times >= rough)
    return [step * count for count in range(int(top / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two values; powers of ten alone if these are many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def svg(height: float, *children: Markup, label: str | None = None) -> Markup:
    """A picture of full width; without a label it only repeats what stands beside it."""
    if label is None:
        return element("svg", *children, height=pixels(height), aria_hidden="true")
    return element("svg", *children, height=pixels(height), role="img", aria_label=label)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element(
        "line", x1=percent(x1), y1=pixels(y1), x2=percent(x2), y2=pixels(y2), class_=class_
    )


def polyline(points: Sequence[tuple[float, float]], class_: str) -> list[Markup]:
    """Straight pieces; `<polyline>` itself knows no percent."""
    return [line(*start, *end, class_) for start, end in itertools.pairwise(points)]


def box(x: float, y: float, width: float, height: float, class_: str) -> Markup:
    return element(
        "rect",
        x=percent(x),
        y=pixels(y),
        width=percent(width),
        height=pixels(height),
        class_=class_,
    )


def dot(x: float, y: float, radius: float, class_: str, tip: str | None = None) -> Markup:
    return element(
        "circle", cx=percent(x), cy=pixels(y), r=pixels(radius), class_=class_, data_tip=tip
    )


def text(
    x: float, y: float, words: object, class_: str = "", *, anchor: str = "start", dx: float = 0
) -> Markup:
    return element(
        "text",
        words,
        x=percent(x),
        y=pixels(y),
        dx=pixels(dx) if dx else None,
        text_anchor=None if anchor == "start" else anchor,
        class_=class_ or None,
    )


def level_lines(
    scale: Scale, ticks: Sequence[float], unit: str = "", end: float = 100
) -> list[Markup]:
    """Horizontal grid lines with their numbers above them; the last one names the unit."""
    parts = []
    for tick in ticks:
        y = scale(tick)
        parts.append(line(0, y, end, y, "axis" if tick == 0 else "grid"))
        words = f"{tick:,g} {unit}".strip() if tick == ticks[-1] else f"{tick:,g}"
        parts.append(text(0, y - 3, words, "tick"))
    return parts


def spread_out(wanted: Sequence[float], apart: float) -> list[float]:
    """Places as near to the wanted ones as keeps neighbours `apart`, in the same order."""
    order = sorted(range(len(wanted)), key=lambda place: wanted[place])
    groups: list[list[int]] = []
    starts: list[float] = []
    for place in order:
        groups.append([place])
        starts.append(wanted[place])
        while len(groups) > 1 and starts[-2] + apart * len(groups[-2]) > starts[-1]:
            merged = groups[-2] + groups[-1]
            middle = sum(wanted[one] for one in merged) / len(merged)
            groups[-2:], starts[-2:] = [merged], [middle - apart * (len(merged) - 1) / 2]
    found = [0.0] * len(wanted)
    for group, start in zip(groups, starts, strict=True):
        for index, place in enumerate(group):
            found[place] = start + apart * index
    return found
