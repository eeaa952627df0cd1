# SPDX-License-Identifier: Apache-2.0
"""One section of the page, or why it is not there."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention_workbench.report.markup import Markup, element


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; without results, a sentence says which to make."""

    anchor: str
    title: str
    body: Markup | None
    missing: str = ""
    sources: tuple[str, ...] = ()  # names of the results files it shows


def lead(*words: object) -> Markup:
    """The sentence under a heading: what is shown, and in which units."""
    return element("p", *words, class_="lead")


def numbers(inside: Markup) -> Markup:
    """The table of a chart, folded away."""
    return element("details", element("summary", "The numbers as a table"), inside, class_="fold")
