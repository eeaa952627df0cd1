# SPDX-License-Identifier: Apache-2.0
"""Where a line of PTX orders accesses, and what that line is with one mistake in it.

Sites are found by rule. Nobody chooses them: a rule takes all of its sites, spread over the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Mend = str | Callable[[re.Match[str]], str]


@dataclass(frozen=True)
class Rule:
    """A mistake, the lines that it can be made in, and what such a line becomes."""

    mistake: str
    pattern: str
    becomes: Mend = ""

    def apply(self, line: str) -> str | None:
        """The line with the mistake; None where the rule has nothing to change."""
        changed, count = re.subn(rf"^\s*(?:{self.pattern})$", self.becomes, line)
        return changed if count else None


@dataclass(frozen=True)
class Site:
    """Line `number` of a PTX text, from 1, and what a rule makes of it."""

    rule: Rule
    number: int
    text: str
    becomes: str

    def plant(self, ptx: str) -> str:
        lines = ptx.split("\n")
        lines[self.number - 1] = self.becomes
        return "\n".join(lines)


def _one_more(match: re.Match[str]) -> str:
    return f"{match['wait']}{int(match['pending']) + 1};"


def _operand_changed(instruction: str) -> str:
    return f"{{ .reg .b32 changed; {instruction}; \\g<rest>, changed; }}"


_TRY_WAIT = r"(?P<rest>mbarrier\.try_wait\S* (?P<done>\w+), \[[^]]+\]), (?P<last>%\w+);"
_EXPECT = r"(?P<rest>mbarrier\.arrive\.expect_tx\S* _, \[[^]]+\]), (?P<last>%\w+);"
_FLIPPED = _operand_changed("xor.b32 changed, \\g<last>, 1")
_GROUP = r"(?P<wait>(?:cp\.async\.|cp\.async\.bulk\.|wgmma\.)wait_group\S*\s+)(?P<pending>\d+);"

RULES = (
    Rule("no proxy fence", r"fence\.proxy\.async(?!\.global)\S*;"),
    Rule("no proxy fence of global memory", r"fence\.proxy\.async\.global;"),
    Rule("no fence behind mbarrier.init", r"fence\.mbarrier_init\S*;"),
    Rule("no fence between threads", r"(?:membar|fence\.(?:acq_rel|sc))\S*;"),
    Rule("no acquire", r"(ld|atom|red)\.acquire(.*)", r"\1.relaxed\2"),
    Rule("no release", r"(st|atom|red)\.release(.*)", r"\1.relaxed\2"),
    Rule("no fence of wgmma", r"wgmma\.fence\S*;"),
    Rule("no barrier", r"bar(?:rier)?\.sync\s.*;"),
    Rule("no __syncwarp", r"bar\.warp\.sync\s.*;"),
    Rule("no arrival at a barrier", r"bar(?:rier)?\.arrive\s.*;"),
    Rule("no arrival at an mbarrier", r"mbarrier\.arrive(?!\.expect)\S* .*;"),
    Rule("no arrival with bytes", r"mbarrier\.arrive\.expect_tx\S* .*;"),
    Rule("16 bytes more", _EXPECT, _operand_changed("add.s32 changed, \\g<last>, 16")),
    Rule("16 bytes fewer", _EXPECT, _operand_changed("add.s32 changed, \\g<last>, -16")),
    Rule("no wait for an mbarrier", _TRY_WAIT, "mov.pred \\g<done>, 1;"),
    Rule("a wait of an mbarrier that tries once", r"@!done bra again;"),
    Rule("the other parity", _TRY_WAIT, _FLIPPED),
    Rule("no wait for a group", _GROUP),
    Rule("one more group may be pending", _GROUP, _one_more),
    Rule("no commit", r"(?:cp\.async\.|cp\.async\.bulk\.|wgmma\.)commit_group\S*;"),
    Rule("no wait for the kernel before", r"griddepcontrol\.wait;"),
)


def sites(ptx: str) -> list[Site]:
    """All sites of all rules, rule by rule."""
    lines = ptx.split("\n")
    return [
        Site(rule, number, line.strip(), becomes)
        for rule in RULES
        for number, line in enumerate(lines, 1)
        if (becomes := rule.apply(line)) is not None
    ]


def spread(found: Sequence[Site], count: int) -> list[Site]:
    """`count` of the sites: the rules take turns until all seats are taken, and each spreads its
    own evenly over its sites, one rule beginning a little later than the one before."""
    by_rule = [[site for site in found if site.rule is rule] for rule in RULES]
    seats = [0] * len(by_rule)
    for rule in _turns([len(own) for own in by_rule], count):
        seats[rule] += 1
    return [
        own[(seat * len(RULES) + number) * len(own) // (taken * len(RULES))]
        for number, (own, taken) in enumerate(zip(by_rule, seats, strict=True))
        for seat in range(taken)
    ]


def _turns(sizes: Sequence[int], count: int) -> Iterator[int]:
    """Who takes each of `count` seats; nobody takes more than its size."""
    if sum(sizes) < count:
        raise ValueError(f"{sum(sizes)} sites are fewer than {count}")
    taken = 0
    for turn in range(max(sizes)):
        for index, size in enumerate(sizes):
            if turn < size and taken < count:
                taken += 1
                yield index
