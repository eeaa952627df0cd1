# SPDX-License-Identifier: Apache-2.0
"""From PTX text to kernels: the functions, variables and kernels of a module."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ptx_emulator.errors import PtxError
from ptx_emulator.ptx.body import Body
from ptx_emulator.ptx.declarations import (
    NAME,
    cluster_shape,
    max_threads,
    read_params,
    read_variables,
    register_limit,
)
from ptx_emulator.ptx.functions import Function, read_function
from ptx_emulator.ptx.model import Kernel, Operand, Symbol, Variable
from ptx_emulator.ptx.text import Text

_MODULE_ITEM = re.compile(
    rf"""
    (?P<line>\.(?:version|target|address_size|file|loc)\b[^\n]*)
    |(?P<section>\.section\b[^{{]*\{{[^}}]*\}})
    |(?:\.(?:visible|weak|extern)\s+)*\.entry\s+(?P<entry>{NAME})\s*
        (?:\((?P<params>[^)]*)\))?
        (?P<directives>(?:[^{{}};"]|"[^"\n]*"\s*;)*)(?P<body>[{{;])
    |(?P<function>(?:\.(?:visible|weak|extern)\s+)*\.func\b[^;{{]*)(?P<function_end>[;{{])
    |(?P<ignored>\.(?:pragma|alias)\b[^;]*;|;)
    |(?P<variable>\.[a-z][^;]*);
    """,
    re.VERBOSE,
)
_WORD = re.compile(r"[%$\w]+")
_FIRST_NAME = re.compile(rf"\.\w+\s+({NAME})\s*[\[=,]")


def parse(text: str) -> Mapping[str, Kernel]:
    """All kernels of a PTX module, by name. Each is read when it is asked for: what is wrong with
    one of them concerns no other."""
    return _Module(text)


class _Module(Mapping[str, Kernel]):
    """One pass over the text, which finds where things are."""

    def __init__(self, text: str) -> None:
        self.text = Text(text)
        self.names: dict[str, Operand] = {}
        self.variables: dict[str, Variable] = {}
        self.functions: dict[str, Function] = {}
        self.unreadable: dict[str, PtxError] = {}  # variables, and what is wrong with them
        self._entries: dict[str, tuple[re.Match[str], int]] = {}  # headers and their lines
        self._kernels: dict[str, Kernel] = {}
        self._read()

    def __getitem__(self, name: str) -> Kernel:
        if name not in self._kernels:
            self._kernels[name] = self._read_kernel(*self._entries[name])
        return self._kernels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _read(self) -> None:
        text = self.text
        position = text.skip_blanks(0)
        while position < len(text.text):
            match = _MODULE_ITEM.match(text.text, position)
            if match is None:
                raise PtxError(f"cannot read {text.line_from(position)}", text.line)
            position = match.end()
            kind = match.lastgroup
            if kind == "body":
                position = self._find_kernel(match)
            elif kind == "function_end":
                position = self._find_function(match)
            elif kind == "variable":
                self._declare(match["variable"])
            position = text.skip_blanks(position)

    def _find_kernel(self, match: re.Match[str]) -> int:
        if match["body"] == ";":
            return match.end()
        name = match["entry"]
        if name in self._entries:
            raise PtxError(f"the kernel {name} is defined twice", self.text.line)
        self._entries[name] = match, self.text.line
        return self._end_of_kernel(match)

    def _end_of_kernel(self, match: re.Match[str]) -> int:
        """What is wrong with a kernel that is never closed is said when it is read."""
        return self.text.end_of_braces(match.end()) or len(self.text.text)

    def _find_function(self, match: re.Match[str]) -> int:
        function = read_function(match["function"], self.text.line)
        self.names[function.name] = Symbol(function.name)
        if match["function_end"] == ";":
            return match.end()
        end = self.text.end_of_braces(match.end())
        if end is None:
            raise PtxError(f"the function {function.name} is never closed", self.text.line)
        header = self.text.text.count("\n", match.start(), match.end())
        self.functions[function.name] = replace(
            function, start=match.end(), end=end, line=function.line + header
        )
        return end

    def _declare(self, statement: str) -> None:
        line = self.text.line
        try:
            found = read_variables(statement, line)
        except PtxError as error:
            name = _FIRST_NAME.search(statement)
            if name is None:
                raise
            self.unreadable[name[1]] = error
            return
        for variable in found:
            if variable.name in self.names:
                raise PtxError(f"{variable.name} is declared twice", line)
            self.names[variable.name] = Symbol(variable.name)
            self.variables[variable.name] = variable

    def _read_kernel(self, match: re.Match[str], line: int) -> Kernel:
        start = match.end()
        params = read_params(match["params"] or "", line)
        first = line + self.text.text.count("\n", match.start(), start)
        with self.text.elsewhere(start, first):
            words = set(_WORD.findall(self.text.text, start, self._end_of_kernel(match)))
            self._refuse_unreadable(words)
            body = Body(self.text, self.names, self.functions, params)
            body.read(start, line)
        for function in body.called:
            words |= set(_WORD.findall(self.text.text, function.start, function.end))
        self._refuse_unreadable(words)
        named = [variable for name, variable in self.variables.items() if name in words]
        return Kernel(
            name=match["entry"],
            params=params,
            registers=body.registers,
            shared=(*(v for v in named if v.space == "shared"), *body.shared),
            instructions=tuple(body.instructions),
            labels=body.labels,
            max_threads=max_threads(match["directives"]),
            cluster=cluster_shape(match["directives"]),
            register_limit=register_limit(match["directives"]),
            target=self.text.target,
            local=tuple(body.local),
            module=tuple(v for v in named if v.space in ("global", "const")),
        )

    def _refuse_unreadable(self, words: set[str]) -> None:
        for name, error in self.unreadable.items():
            if name in words:
                raise error
