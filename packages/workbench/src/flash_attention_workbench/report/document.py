# SPDX-License-Identifier: Apache-2.0
"""The page: its sections between a heading and a line of contents, style and script inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from flash_attention_workbench.bench.stored import Stored
from flash_attention_workbench.report.headline import headline
from flash_attention_workbench.report.markup import Markup, element, join
from flash_attention_workbench.report.rungs import RungText, backward_ladder, forward_ladder
from flash_attention_workbench.report.section import Section
from flash_attention_workbench.report.sections.counters import counters_section
from flash_attention_workbench.report.sections.environment import environment_section
from flash_attention_workbench.report.sections.gradients import gradients_section
from flash_attention_workbench.report.sections.ladder import ladder_section
from flash_attention_workbench.report.sections.landscape import landscape_section
from flash_attention_workbench.report.sections.others import others_section
from flash_attention_workbench.report.sections.peers import peers_section
from flash_attention_workbench.report.sections.roofline import roofline_section
from flash_attention_workbench.report.sections.shapes import shapes_section

TITLE = "flash_attention, measured"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True)
class Page:
    """The page as text, and a sentence for every section that has no results."""

    text: str
    missing: tuple[str, ...]


def render_page(
    stored: Sequence[Stored], rungs: Sequence[RungText], backward_rungs: Sequence[RungText]
) -> Page:
    """The whole page, the same for the same results."""
    forward, backward = forward_ladder(rungs), backward_ladder(backward_rungs)
    measured = [
        ladder_section(stored, forward),
        peers_section(stored),
        gradients_section(stored),
        shapes_section(stored),
        roofline_section(stored),
        landscape_section(stored),
        counters_section(stored, forward),
        ladder_section(stored, backward),
        counters_section(stored, backward),
    ]
    others = others_section(stored, measured)
    shown = [*measured, *([others] if others else [])]
    sections = [*shown, environment_section(stored, shown)]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", TITLE),
        element("style", _asset("style.css")),
    )
    body = element(
        "body",
        element("a", "Skip to the charts", href="#main", class_="skip"),
        element("header", element("h1", TITLE), headline(stored), _contents(sections)),
        element("main", *map(_section, sections), id="main"),
        element("div", id="tip", role="status", hidden=True),
        element("script", _asset("script.js")),
    )
    text = f"<!doctype html>\n{element('html', head, body, lang='en')}\n"
    return Page(text, tuple(section.missing for section in measured if section.missing))


def _section(section: Section) -> Markup:
    title = element("h2", section.title, id=section.anchor)
    inside = section.body or element("p", section.missing, class_="missing")
    return element("section", title, inside, aria_labelledby=section.anchor)


def _contents(sections: Sequence[Section]) -> Markup:
    links = [element("a", one.title, href=f"#{one.anchor}") for one in sections]
    return element("nav", join(links), aria_label="Sections")


def _asset(name: str) -> Markup:
    text = (files("flash_attention_workbench.report") / "assets" / name).read_text()
    return Markup("\n" + text.partition("*/\n")[2])
