# SPDX-License-Identifier: Apache-2.0
"""What the emulator makes of kernels of public repositories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.render.blocks import table, wrap

CORPUS = "corpus"
HEADER = ("repository", "files", "entry points", "load", "run", "right", "mistakes found")

Repository = Mapping[str, Any]


def corpus_block(record: Mapping[str, Any]) -> str:
    """A line for each repository, why kernels are refused, and the mistakes that were found."""
    repositories = record["repositories"]
    lines = [_line(one["repository"], [one]) for one in repositories]
    if len(repositories) > 1:
        lines.append(_line("**all**", repositories))
    refusals = sum((Counter(one["refusals"]) for one in repositories), Counter[str]())
    told = [[feature, str(count)] for feature, count in refusals.most_common()]
    why = (
        table(["what refuses a kernel", "kernels"], told, left=1) if told else ["None is refused."]
    )
    found = [
        [one["repository"], f"`{mistake['kernel']}`", mistake["what"]]
        for one in repositories
        for mistake in one["mistakes"]
    ]
    mistakes = table(["repository", "kernel", "mistake that is found"], found, left=3)
    return wrap(
        CORPUS, (*table(HEADER, lines, left=1), "", *why, *([""] if why else []), *mistakes)
    )


def _line(name: str, repositories: Sequence[Repository]) -> list[str]:
    def total(key: str) -> int:
        return sum(one[key] for one in repositories)

    loaded = total("entries") - sum(sum(one["refusals"].values()) for one in repositories)
    share = f"{loaded} ({100 * loaded / total('entries'):.0f} %)"
    mistakes = sum(len(one["mistakes"]) for one in repositories)
    files = str(total("files"))
    if total("broken"):
        files = f"{total('files') - total('broken')} of {files}"
    counts = (total("entries"), share, total("run"), total("right"), mistakes)
    return [name, files, *map(str, counts)]
