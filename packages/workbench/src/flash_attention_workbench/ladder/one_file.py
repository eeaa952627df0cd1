# SPDX-License-Identifier: Apache-2.0
"""A kernel as one file: its headers in order, less the definitions that it does not use.

Every line is a line of a header or of the translation unit. The headers are formatted, so that a
definition starts and ends where the brackets around it are closed, and its name can be read off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import fill, indent

from flash_attention.compile.includes import include_closure

_LICENSE = "// SPDX-License-Identifier: Apache-2.0\n"
_UNIT = "the config, and the kernel"  # the heading of what comes after the headers
_COLUMNS = 100
_ENTRY = re.compile(
    r'^(extern "C".*)\n(flash_(?:forward|backward))_\w+\(\n([^{]*)\) {\n', re.MULTILINE
)
_ALIGNED = 5  # parameters at most that clang-format puts under each other
_NO_BREAK = "\xa0"
_LEAD = re.compile(r"\A(?://.*\n)*")  # what a header says of itself
_DIRECTIVE = re.compile(r"^#(?:pragma once|include).*\n", re.MULTILINE)
_ASSERTION = re.compile(r"^ *static_assert\(([^;]*)\);\n", re.MULTILINE)
_CONCEPT = re.compile(r"^concept (\w+)", re.MULTILINE)
_CHECKER = "check_slots"  # the functions that hold a config to the concepts
_NO_CODE = re.compile(r'//.*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"')
_NAMESPACE = re.compile(r"namespace ([\w:]+) {")
_TEMPLATE = re.compile(r"\s*template <(?:[^<>]|<[^<>]*>)*>\s*")
_NAME = re.compile(r"(?!alignas|__launch_bounds__)\b([\w:]+)(<[^()]*>)?\s*(?:[({=;]|:\s)")
_PATH = re.compile(r"(?<![\w.:>])(?:\w+::(?:template )?)*[A-Za-z_]\w*")


@dataclass(frozen=True)
class _Definition:
    """A function, class, alias, constant, concept or macro, with the comment above it."""

    header: str
    space: str  # the namespace
    text: str

    @cached_property
    def code(self) -> str:
        return _NO_CODE.sub("", self.text)

    @cached_property
    def name(self) -> str:
        """With the namespace, such as fa::attn::mask::Full."""
        return _inside(self.space, self._head[1])

    @cached_property
    def arguments(self) -> str:
        """Those that the template is specialised for."""
        return self._head[2] or "" if self.code.strip().startswith("template <>") else ""

    @cached_property
    def _head(self) -> re.Match[str]:
        code = self.code.strip().removeprefix("#define ")
        found = _NAME.search(_TEMPLATE.sub("", code, count=1))
        assert found, self.text
        return found

    def mentions(self, code: str, defined: set[str]) -> set[str]:
        """The definitions that `code`, a part of this one, names: of each name the nearest."""
        names = self.space.split("::")
        around = ["::".join(names[:count]) for count in range(len(names), -1, -1)]
        found = set()
        for path in set(_PATH.findall(code)):
            parts = path.replace("template ", "").split("::")
            for count in range(1, len(parts) + 1):
                places = (_inside(space, "::".join(parts[:count])) for space in around)
                found.update(next(([place] for place in places if place in defined), []))
        return found


def one_file(unit: str, title: Sequence[str] = ()) -> str:
    """The kernel of a translation unit; the sentences of `title` say what it is.

    In a file of its own it needs no config in its name.
    """
    texts = {**include_closure(unit), _UNIT: _ENTRY.sub(_short_entry, unit)}
    checks = [_CHECKER, *_CONCEPT.findall("".join(texts.values()))]
    check = re.compile(rf"\b(?:{'|'.join(checks)})\b")
    definitions = [
        definition
        for header, text in texts.items()
        for definition in _definitions(header, _without_checks(_LEAD.sub("", text), check))
    ]
    leads = {name: _LEAD.findall(texts[name])[0].removeprefix(_LICENSE) for name in texts}
    leads[_UNIT] = ""
    head = [_LICENSE, *(f"// {sentence}\n" for sentence in title)]
    return "".join((*head, *_sections(_reached(definitions), leads)))


def _inside(space: str, name: str) -> str:
    return f"{space}::{name}" if space else name


def _short_entry(entry: re.Match[str]) -> str:
    """The first lines of the kernel with a short name, as clang-format breaks them."""
    parameters = [line.strip() for line in entry[3].splitlines()]
    name = f"{entry[2]}_kernel("
    if len(parameters) > _ALIGNED:
        words = " ".join(parameter.replace(" ", _NO_BREAK) for parameter in parameters)
        rows = indent(fill(words, _COLUMNS - 4), "    ").replace(_NO_BREAK, " ")
        return f"{entry[1]} {name}\n{rows}) {{\n"
    rows = ("\n    " + " " * len(name)).join(parameters)
    return f"{entry[1]}\n    {name}{rows}) {{\n"


def _without_checks(text: str, check: re.Pattern[str]) -> str:
    """The code without assertions that a variant is one of its slot."""
    kept = _ASSERTION.sub(lambda found: "" if check.search(found[1]) else found[0], text)
    return _DIRECTIVE.sub("", kept)


def _definitions(header: str, text: str) -> Iterator[_Definition]:
    """What is defined at the top level of a header, in order; its assertions define nothing."""
    space, lines, depth = "", "", 0
    for line in text.splitlines(keepends=True):
        code = _NO_CODE.sub("", line).strip()
        if not depth and (opened := _NAMESPACE.match(code)):
            space, lines = opened[1], ""
        elif not depth and code == "}":
            space, lines = "", ""
        else:
            lines += line
            depth += sum(code.count(mark) for mark in "([{")
            depth -= sum(code.count(mark) for mark in ")]}")
            macro = code.startswith("#") and not code.endswith("\\")
            if not depth and (macro or code.endswith((";", "}"))):
                if not lines.lstrip().startswith("static_assert("):
                    yield _Definition(header, "" if macro else space, lines)
                lines = ""


def _reached(definitions: Sequence[_Definition]) -> list[_Definition]:
    """The kernel, which is the last, and all that it needs, in the given order."""
    defined = {definition.name for definition in definitions}
    reached = {definitions[-1].name}
    kept: set[_Definition] = set()
    while new := [
        definition
        for definition in definitions
        if definition not in kept
        and definition.name in reached
        and definition.mentions(definition.arguments, defined) <= reached
    ]:
        kept.update(new)
        for definition in new:
            reached |= definition.mentions(definition.code, defined)
    return [definition for definition in dict.fromkeys(definitions) if definition in kept]


def _sections(definitions: Sequence[_Definition], leads: dict[str, str]) -> Iterator[str]:
    """The definitions of every header under its name and its comment, in their namespaces."""
    header = space = ""
    for definition in definitions:
        new = definition.header != header
        if space and (new or definition.space != space):
            yield f"\n}}  // namespace {space}\n"
            space = ""
        if new:
            header = definition.header
            yield f"\n{f'// ---- {header} '.ljust(_COLUMNS, '-')}\n{leads[header]}"
        opens = definition.space != space
        if opens:
            space = definition.space
            yield f"\nnamespace {space} {{\n"
        text = definition.text.lstrip("\n")
        yield "\n" + text if new or opens or text != definition.text else text
    if space:
        yield f"\n}}  // namespace {space}\n"
