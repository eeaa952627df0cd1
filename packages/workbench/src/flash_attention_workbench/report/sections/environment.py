# SPDX-License-Identifier: Apache-2.0
"""Where every results file was measured, and what of it is on the page."""

from __future__ import annotations

from collections.abc import Sequence

from flash_attention_workbench.bench.stored import Stored
from flash_attention_workbench.report.markup import element, join, table
from flash_attention_workbench.report.section import Section, lead

ANCHOR, TITLE = "environment", "Where it was measured"
_FACTS = ("device", "driver", "nvrtc", "torch", "commit", "date")


def environment_section(stored: Sequence[Stored], shown: Sequence[Section]) -> Section:
    """A line a file, with the sections that show it."""
    rows = []
    for one in stored:
        places = [section for section in shown if one.path.name in section.sources]
        links = [element("a", place.title, href=f"#{place.anchor}") for place in places]
        where = join(part for link in links for part in (link, element("br"))) or "not on this page"
        facts = [one.record.get(fact) or "" for fact in _FACTS]
        rows.append([one.path.name, where, *facts])
    header = ["file", "shown in", "device", "driver", "NVRTC", "torch", "commit", "date"]
    commands = [one for one in stored if one.record.get("command")]
    repeat = element(
        "details",
        element("summary", "The commands that made them"),
        *(
            element("p", f"{one.path.name}: ", element("code", one.record["command"]))
            for one in commands
        ),
        class_="fold commands",
    )
    about = lead("An empty cell is a fact the file does not hold.")
    files = table(header, rows, caption="Results files", left=len(header), class_="files")
    return Section(ANCHOR, TITLE, join((about, files, repeat if commands else "")))
