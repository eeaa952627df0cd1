# SPDX-License-Identifier: Apache-2.0
"""Findings for people: what happened, at which two lines, why that is a problem, what mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ptx_emulator.machine.launch.findings import Finding
from ptx_emulator.report.mends import MENDS, PROBLEMS


def from_here(text: str) -> str:
    """A text with the paths below the current folder as they are seen from there."""
    return text.replace(f"{Path.cwd()}/", "")


@dataclass(frozen=True)
class Sources:
    """How places in CUDA text are named, and where the files are."""

    shorten: Callable[[str], str] = from_here  # the paths in a text
    folder: Path = Path()  # that short paths start from
    wrappers: str = "\0"  # how places begin that stand for their caller's
    shown: tuple[int, ...] = (0, -1)  # places of an inline chain: the first, and the user's own

    def places(self, source: str | None) -> tuple[str, ...]:
        """The places of the chain of calls in `source` that are shown."""
        places = self.shorten(source or "").split(", called from ")
        own = [place for place in places if not place.startswith(self.wrappers)] or places
        return tuple(dict.fromkeys(own[i] for i in self.shown if i < len(own)))

    def lines(self, source: str | None) -> list[str]:
        """The text at these places."""
        found = []
        for place in self.places(source):
            name, _, number = place.rpartition(":")
            path = self.folder / name
            if number.isdecimal() and path.is_file():
                lines = path.read_text(errors="replace").splitlines()
                found.append(f"{place}  {lines[int(number) - 1].strip()}")
        return found


FROM_HERE = Sources()


def finding_lines(
    findings: Sequence[Finding], sources: Sources = FROM_HERE, places: Sequence[str] = ()
) -> Iterator[str]:
    """The findings of each kind and line in CUDA, those lines, and how to fix them.

    `places` says what lies at the address of each.
    """
    said = dict(zip(findings, places, strict=False))
    lines: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[Finding]] = {}
    for finding in findings:
        ends = sources.places(finding.source), sources.places(finding.other_source)
        lines.setdefault((finding.kind, *ends), []).append(finding)
    for found in lines.values():
        source, other = found[0].source, found[0].other_source
        count = sum(finding.count for finding in found)
        first = replace(found[0], source=None, other_ptx_line=None, count=count)
        at = f", at {len(found)} places in PTX" if len(found) > 1 else ""
        yield f"  {first}{at}"
        yield from _indented(sources.lines(source))
        if place := said.get(found[0]):
            yield f"    that address is {place}"
        if other:
            yield "    the other access:"
            yield from _indented(sources.lines(other))
    yield from mend_lines(dict.fromkeys(finding.kind for finding in findings))


def mend_lines(kinds: Iterable[str], mends: Mapping[str, str] = MENDS) -> Iterator[str]:
    """Why mistakes of these kinds are a problem, and how to fix them."""
    for kind in kinds:
        if kind in PROBLEMS:
            yield f"why it is a problem ({kind}): {PROBLEMS[kind]}"
        yield f"how to fix it ({kind}): {mends[kind]}"


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
