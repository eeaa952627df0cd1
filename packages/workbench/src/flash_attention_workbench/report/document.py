# SPDX-License-Identifier: Apache-2.0
"""The page: its sections in the template `assets/page.html`, with style and script inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined

from flash_attention_workbench.bench.stored import Stored
from flash_attention_workbench.report.headline import headline
from flash_attention_workbench.report.markup import Markup
from flash_attention_workbench.report.rungs import RungText, backward_ladder, forward_ladder
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
_ASSETS = files("flash_attention_workbench.report") / "assets"
_TEMPLATES = Environment(
    loader=FunctionLoader(lambda name: (_ASSETS / name).read_text()),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
)


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
    page = _TEMPLATES.get_template("page.html")
    text = page.render(title=TITLE, headline=headline(stored), sections=sections, asset=_asset)
    return Page(text, tuple(section.missing for section in measured if section.missing))


def _asset(name: str) -> Markup:
    """A file without its licence, which stands in its first line."""
    return Markup("\n" + (_ASSETS / name).read_text().partition("*/\n")[2])
