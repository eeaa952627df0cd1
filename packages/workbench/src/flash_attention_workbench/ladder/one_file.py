# SPDX-License-Identifier: Apache-2.0
"""A kernel as one file that reads from top to bottom: its config, and what it needs of its headers.

The headers are parsed, specialised to the config, and printed in sections. The compiler makes the
same machine code of the file as of the translation unit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from flash_attention.compile.includes import include_closure
from flash_attention_workbench.ladder.concrete import make_concrete
from flash_attention_workbench.ladder.flatten import OUTERMOST, flatten
from flash_attention_workbench.ladder.fold import specialise
from flash_attention_workbench.ladder.layout import UNROLL, Layout, paragraphs, rows
from flash_attention_workbench.ladder.parse import CLASS, MACRO, STATEMENTS, Item, parse_file
from flash_attention_workbench.ladder.program import CONFIG, INSTRUCTIONS, Program, mentions
from flash_attention_workbench.ladder.reach import Reach
from flash_attention_workbench.ladder.tokens import text_of

_LICENSE = "// SPDX-License-Identifier: Apache-2.0"
_UNIT = "unit"
_ENTRY = re.compile(r"\b(flash_(?:forward|backward))_\w+(?=\()")
_SECTIONS = {
    "numbers and arguments": ("fa/core", "fa/forward_args", "fa/backward_args"),
    "instructions": ("fa/ptx/",),
    "softmax": ("fa/attn/", "fa/dtype"),
    "tiles": (),  # all others
    "the schedule": ("/schedule/", "/loop/", "/turns/", "/tile_order/", "/verbs.cuh"),
    "the kernel": (
        *("/forward.cuh", "/consumer.cuh", "/producer.cuh", "/roles/"),
        *("/backward.cuh", "/block.cuh", "/key_warpgroup.cuh", _UNIT),
    ),
}
"""In this order; a declaration is in the section that a part of its header's name or of its
namespaces stands for."""
_RULE = 100  # columns of a heading
_APART = 16  # lines of a declaration that has an empty line before and after it


def one_file(unit: str, title: Sequence[str] = ()) -> str:
    """The kernel of a translation unit; the sentences of `title` say what it is.

    In a file of its own it needs no config in its name.
    """
    unit = _ENTRY.sub(r"\1_kernel", unit)
    texts = {**include_closure(unit), _UNIT: unit}
    program = Program([item for name in texts for item in parse_file(texts[name], name)])
    reach = specialise(program)
    flatten(program, reach)
    make_concrete(program, reach)
    _shorten_arguments(program, reach)
    layout = Layout(lambda i: i.kind in STATEMENTS or i in reach.kept, apart=program.config)
    lines = [
        _LICENSE,
        *(line for sentence in title for line in paragraphs([f"// {sentence}"])),
        "",
        f'#define {UNROLL} _Pragma("unroll")',
        f"namespace {OUTERMOST} {{",
        "",
        *_config(program, layout),
        *_sections(_ordered(program, reach), layout),
        "",
        f"}}  // namespace {OUTERMOST}",
    ]
    return "\n".join(lines) + "\n"


def _config(program: Program, layout: Layout) -> list[str]:
    """`struct Config`, after the names of the variants that it binds."""
    declared = []
    for variant in dict.fromkeys(program.slots.values()):
        if layout.keeps(variant):
            end = next(i for i, token in enumerate(variant.head) if token.text in variant.names)
            declared.append(f"{text_of(variant.head[: end + 1])};")
    return [*rows(declared), *layout.lines(program.config)]


def _sections(items: list[Item], layout: Layout) -> list[str]:
    """The declarations under their headings, the instructions in their own namespace."""
    lines: list[str] = []
    section = space = ""
    before: Item | None = None
    height = 0  # of the one before, with its comments
    headers = {_UNIT}  # whose comment was given
    for item in items:
        inside = INSTRUCTIONS if item.path[-1:] == (INSTRUCTIONS,) or item.kind == MACRO else ""
        if space and (inside != space or _section(item) != section):
            lines.append(f"}}  // namespace {space}")
            space, before = "", None
        if _section(item) != section:
            section, before = _section(item), None
            lines += ["", f"// ---- {section} ".ljust(_RULE, "-")]
        if inside != space:
            lines.append(f"namespace {inside} {{")
            space, before = inside, None
        if item.source not in headers:
            headers.add(item.source)
            item.lead = item.lead or item.about
        here = layout.lines(item)
        if before and max(height, len(here)) > _APART:
            lines.append("")
        height = len(here)
        layout.add(lines, here, before, item)
        before = item
    return lines


def _section(item: Item) -> str:
    if item.source == _UNIT and item.kind in {CLASS, MACRO}:
        return "instructions"
    if item.source.startswith("fa/ptx/") and item.path[-1:] != (INSTRUCTIONS,):
        return "numbers and arguments"
    place = f"{item.source} {'/'.join((*item.path, ''))}"
    found = (title for title, parts in _SECTIONS.items() if any(part in place for part in parts))
    return next(found, "tiles")


def _ordered(program: Program, reach: Reach) -> list[Item]:
    """Sections one after the other, but nothing before what it needs."""
    titles = list(_SECTIONS)
    kept = [
        item
        for item in program.items
        if item in reach.kept and item is not program.config and not item.is_using_declaration
    ]
    variants = {variant.names[0] for variant in program.slots.values()}
    placed: dict[Item, None] = {}
    begun: set[Item] = set()

    def place(item: Item) -> None:
        if item in begun:
            return
        begun.add(item)
        names = _needed(item, program, reach)
        if item.path[-1:] == (INSTRUCTIONS,):
            names -= variants  # that they are declared is enough
        for other in kept:
            if names & set(other.names):
                place(other)
        placed[item] = None

    for item in sorted(kept, key=lambda item: titles.index(_section(item))):
        place(item)
    return list(placed)


def _needed(item: Item, program: Program, reach: Reach) -> set[str]:
    """The names that have to be declared before a declaration."""
    found = mentions(item)
    own = {CONFIG, *item.names, *item.template_parameters}
    names = {mention.name for mention in found if mention.qualifier is None} - own
    names |= {mention.name for mention in found if mention.qualifier in program.namespaces}
    names |= {
        program.slots[mention.name].names[0]
        for mention in found
        if mention.qualifier == CONFIG and mention.name in program.slots
    }
    if item.kind == CLASS:
        for member in item.body or ():
            if member in reach.kept:
                names |= _needed(member, program, reach)
    return names


def _shorten_arguments(program: Program, reach: Reach) -> None:
    """Arguments that this kernel does not look at keep their place, not their comments."""
    structs = [s for token in program.entry.head for s in program.classes.get(token.text, ())]
    for struct in structs:
        structs += [
            base
            for token in struct.head
            for base in program.classes.get(token.text, ())
            if base is not struct
        ]
        for field in struct.body or ():
            if not reach.of_objects & set(field.names):
                field.trail = ""
