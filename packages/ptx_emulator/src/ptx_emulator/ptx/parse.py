# SPDX-License-Identifier: Apache-2.0
"""From PTX text to kernels: the module, the scopes of a kernel body, its labels and locations."""

from __future__ import annotations

import re
from dataclasses import replace

from ptx_emulator.errors import PtxError, quoted
from ptx_emulator.ptx.declarations import (
    NAME,
    cluster_shape,
    max_threads,
    read_params,
    read_registers,
    read_variables,
    register_limit,
)
from ptx_emulator.ptx.lower import branch_table, lowered
from ptx_emulator.ptx.model import (
    Instruction,
    Kernel,
    Label,
    Operand,
    Param,
    Reg,
    Symbol,
    Variable,
    Vector,
)
from ptx_emulator.ptx.operands import read_operands
from ptx_emulator.ptx.places import Places

_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_FILE = re.compile(r'^[ \t]*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?', re.MULTILINE)
_TARGET = re.compile(r"^[ \t]*\.target\s+(\w+)", re.MULTILINE)
_BLANK = re.compile(r"\s*")
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
_BODY_ITEM = re.compile(
    rf"""
    (?P<loc>\.loc\b[^\n]*)
    |(?P<file>\.file\b[^\n]*)
    |(?P<label>{NAME})\s*:(?!:)
    |(?P<open>\{{)
    |(?P<close>\}})
    |(?P<empty>;)
    |(?P<statement>[^;{{}}"]+(?:(?:\{{[^{{}}]*\}}|"[^"\n]*")[^;{{}}"]*)*);
    """,
    re.VERBOSE,
)
_WORD = re.compile(r"[%$\w]+")
_BRACE = re.compile(r'[{}]|"[^"\n]*"')
_FUNCTION_NAME = re.compile(rf"\.func\s+(?:\.noreturn\s+)?(?:\([^)]*\)\s*)?({NAME})")
_INSTRUCTION = re.compile(r"(?:@\s*(!?)\s*([%$\w.]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.DOTALL)

_BRANCHES = ("bra", "brx")
_ENDS = ("ret", "exit", "bra", "brx")
_VARIABLES = (".shared", ".extern", ".visible", ".weak", ".global", ".const", ".local", ".param")
_IGNORED = (".pragma", ".calltargets", ".callprototype")
_TABLE = ".branchtargets"


def parse(text: str) -> dict[str, Kernel]:
    """All kernels of a PTX module, by name."""
    return _Module(text).kernels


class _Module:
    """One pass over the text; `line` is the line of the item being read."""

    def __init__(self, text: str) -> None:
        self.text = _COMMENT.sub(_without_comment, text)
        self.line = 1
        self._counted = 0
        self.files = {
            int(number): f"{first}/{second}" if second else first
            for number, first, second in _FILE.findall(self.text)
        }
        target = _TARGET.search(self.text)
        self.target = target[1] if target else ""
        self.names: dict[str, Operand] = {}
        self.variables: dict[str, Variable] = {}
        self.kernels: dict[str, Kernel] = {}
        self._read()

    def skip_blanks(self, position: int) -> int:
        """The next position that holds something; `line` becomes the line of that position."""
        found = _BLANK.match(self.text, position)
        place = found.end() if found else position
        self.line += self.text.count("\n", self._counted, place)
        self._counted = place
        return place

    def line_from(self, position: int) -> str:
        """The rest of the line, to stand in an error."""
        return quoted(self.text[position:].partition("\n")[0])

    def _read(self) -> None:
        position = self.skip_blanks(0)
        while position < len(self.text):
            match = _MODULE_ITEM.match(self.text, position)
            if match is None:
                raise PtxError(f"cannot read {self.line_from(position)}", self.line)
            position = match.end()
            kind = match.lastgroup
            if kind == "body":
                position = self._read_kernel(match) if match["body"] == "{" else position
            elif kind == "function_end":
                position = self._skip_function(match)
            elif kind == "variable":
                self._declare(match["variable"])
            position = self.skip_blanks(position)

    def _read_kernel(self, match: re.Match[str]) -> int:
        name = match["entry"]
        if name in self.kernels:
            raise PtxError(f"the kernel {name} is defined twice", self.line)
        params = read_params(match["params"] or "", self.line)
        body = _Body(self, params)
        start = match.end()
        end = body.read(start)
        named = self._named_between(start, end)
        self.kernels[name] = Kernel(
            name=name,
            params=params,
            registers=body.registers,
            shared=(*(v for v in named if v.space == "shared"), *body.shared),
            instructions=tuple(body.instructions),
            labels=body.labels,
            max_threads=max_threads(match["directives"]),
            cluster=cluster_shape(match["directives"]),
            register_limit=register_limit(match["directives"]),
            target=self.target,
            local=tuple(body.local),
            module=tuple(v for v in named if v.space in ("global", "const")),
        )
        return end

    def _named_between(self, start: int, end: int) -> list[Variable]:
        """The variables of the module that a kernel names."""
        words = set(_WORD.findall(self.text, start, end))
        return [variable for name, variable in self.variables.items() if name in words]

    def _skip_function(self, match: re.Match[str]) -> int:
        name = _FUNCTION_NAME.search(match["function"])
        if name is None:
            raise PtxError(f"cannot read the function {self.line_from(match.start())}", self.line)
        self.names[name[1]] = Symbol(name[1])
        depth = 1 if match["function_end"] == "{" else 0
        position = match.end()
        while depth:
            brace = _BRACE.search(self.text, position)
            if brace is None:
                raise PtxError(f"the function {name[1]} is never closed", self.line)
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            position = brace.end()
        return position

    def _declare(self, statement: str) -> None:
        for variable in read_variables(statement, self.line):
            if variable.name in self.names:
                raise PtxError(f"{variable.name} is declared twice", self.line)
            self.names[variable.name] = Symbol(variable.name)
            self.variables[variable.name] = variable


def _without_comment(match: re.Match[str]) -> str:
    found = match[0]
    return found if found[0] == '"' else " " + "\n" * found.count("\n")


class _Scope:
    """What is settled when a pair of braces closes; `suffix` makes its names unique."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix
        self.hidden: dict[str, Operand | None] = {}
        self.labels: set[str] = set()
        self.jumps: list[tuple[Instruction, str]] = []


class _Body:
    """The body of one kernel; `names` is what can be named at the place being read."""

    def __init__(self, module: _Module, params: tuple[Param, ...]) -> None:
        self.module = module
        self.names: dict[str, Operand] = dict(module.names)
        self.names.update((param.name, Symbol(param.name)) for param in params)
        self.registers: dict[str, str] = {}
        self.shared: list[Variable] = []
        self.local: list[Variable] = []
        self.call_params: set[str] = set()
        self.last_label = ""
        self.tables: dict[str, list[str]] = {}  # labels that a brx.idx chooses from
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.places = Places(module.files)
        self.scopes = [_Scope("")]
        self.scope_count = 0

    def read(self, position: int) -> int:
        """Reads up to the brace that closes the kernel and returns the position after it."""
        module, text = self.module, self.module.text
        first_line = module.line
        while self.scopes:
            position = module.skip_blanks(position)
            match = _BODY_ITEM.match(text, position)
            if match is None:
                if position == len(text):
                    raise PtxError("the kernel that begins here is never closed", first_line)
                raise PtxError(f"no ';' ends {module.line_from(position)}", module.line)
            position = match.end()
            kind = match.lastgroup
            if kind == "statement":
                self._statement(match["statement"], module.line)
            elif kind == "loc":
                self.places.locate(match["loc"], module.line)
            elif kind == "label":
                self._label(match["label"], module.line)
            elif kind == "open":
                self.scope_count += 1
                self.scopes.append(_Scope(f"@{self.scope_count}"))
            elif kind == "close":
                self._close()
        self._end_with_return(module.line)
        return position

    def _label(self, name: str, line: int) -> None:
        scope = self.scopes[-1]
        if name in scope.labels:
            raise PtxError(f"the label {name} is there twice in one scope", line)
        scope.labels.add(name)
        self.last_label = name
        self.labels[name + scope.suffix] = len(self.instructions)

    def _close(self) -> None:
        scope = self.scopes.pop()
        for instruction, name in scope.jumps:
            if name in scope.labels:
                target = Label(name + scope.suffix)
                instruction.operands = (*instruction.operands[:-1], target)
            elif self.scopes:
                self.scopes[-1].jumps.append((instruction, name))
            else:
                raise PtxError(f"there is no label {quoted(name)} to jump to", instruction.ptx_line)
        for name, before in scope.hidden.items():
            if before is None:
                del self.names[name]
            else:
                self.names[name] = before

    def _end_with_return(self, line: int) -> None:
        """What runs into the closing brace, or jumps to it, returns."""
        last = self.instructions[-1] if self.instructions else None
        runs_on = last is None or last.predicate is not None or last.parts[0] not in _ENDS
        at_end = {name for name, index in self.labels.items() if index == len(self.instructions)}
        jumps = (i.operands[-1] for i in self.instructions if i.parts[0] in _BRANCHES)
        if runs_on or any(isinstance(jump, Label) and jump.name in at_end for jump in jumps):
            self.instructions.append(
                Instruction("ret", ("ret",), (), None, False, line, self.places.location, "ret")
            )

    def _declare(self, name: str, operand: Operand, line: int) -> None:
        hidden = self.scopes[-1].hidden
        if name in hidden:
            raise PtxError(f"{name} is declared twice in one scope", line)
        hidden[name] = self.names.get(name)
        self.names[name] = operand

    def _statement(self, statement: str, line: int) -> None:
        if statement[0] != ".":
            self._instruction(statement, line)
        elif statement.startswith(".reg"):
            self._declare_registers(statement, line)
        elif statement.startswith(_TABLE):
            targets = statement.removeprefix(_TABLE).split(",")
            self.tables[self.last_label] = [target.strip() for target in targets]
        elif statement.startswith(_VARIABLES):
            self._declare_variables(statement, line)
        elif not statement.startswith(_IGNORED):
            raise PtxError(f"unknown directive {quoted(statement.split()[0])}", line)

    def _declare_variables(self, statement: str, line: int) -> None:
        suffix = self.scopes[-1].suffix
        for variable in read_variables(statement, line):
            name, unique = variable.name, variable.name + suffix
            if variable.space == "param" and variable.size in (1, 2, 4, 8):
                self._declare_register(name, f"b{8 * variable.size}", line)
                self.call_params.add(unique)
                continue
            self._declare(name, Symbol(unique), line)
            if variable.space in ("shared", "local"):
                space = self.shared if variable.space == "shared" else self.local
                space.append(replace(variable, name=unique))

    def _declare_registers(self, statement: str, line: int) -> None:
        kind, lanes, names = read_registers(statement, line)
        for name in names:
            if lanes == 1:
                self._declare_register(name, kind, line)
                continue
            items = tuple(
                self._declare_register(f"{name}.{lane}", kind, line) for lane in "xyzw"[:lanes]
            )
            for lane, item in zip("rgba", items, strict=False):
                self._declare(f"{name}.{lane}", item, line)
            self._declare(name, Vector(items), line)

    def _declare_register(self, name: str, kind: str, line: int) -> Reg:
        register = Reg(name + self.scopes[-1].suffix)
        self._declare(name, register, line)
        self.registers[register.name] = kind
        return register

    def _instruction(self, statement: str, line: int) -> None:
        match = _INSTRUCTION.match(statement)
        text = " ".join(statement.split())
        if match is None:
            raise PtxError(f"cannot read the instruction {quoted(text)}", line)
        negated, guard, opcode, rest = match.groups()
        parts = tuple(opcode.split("."))
        if "" in parts:
            raise PtxError(f"cannot read the opcode {quoted(opcode)}", line)
        predicate = self._predicate(guard, line) if guard else None
        jumps = parts[0] in _BRANCHES
        listed, _, label = rest.rpartition(",") if jumps else (rest, "", "")
        if parts[0] == "call":
            operands = self._call_operands(rest, line)
        else:
            operands = read_operands(listed, self.names, line)
        instruction = Instruction(
            opcode,
            parts,
            operands,
            predicate,
            bool(negated),
            line,
            self.places.location,
            text,
            self.places.callers,
        )
        if parts[0] == "brx":
            found = self._branch_table(instruction, label.strip(), line)
        else:
            instruction.operands = (*operands, Label(label.strip())) if jumps else operands
            found = lowered(instruction, self.call_params)
        for simple in found:
            if isinstance(target := simple.operands[-1] if simple.operands else None, Label):
                self.scopes[-1].jumps.append((simple, target.name))
        self.instructions += found

    def _call_operands(self, text: str, line: int) -> tuple[Operand, ...]:
        """Of a call through a pointer nothing is known; it is refused where it is emitted."""
        try:
            return read_operands(text, self.names, line)
        except PtxError:
            return ()

    def _branch_table(self, instruction: Instruction, table: str, line: int) -> list[Instruction]:
        if table not in self.tables:
            raise PtxError(f"there is no table {quoted(table)} of branch targets", line)
        chosen = Reg("%brx")
        self.registers[chosen.name] = "pred"
        return branch_table(instruction, instruction.operands[0], chosen, self.tables[table])

    def _predicate(self, name: str, line: int) -> Reg:
        register = self.names.get(name)
        if not isinstance(register, Reg) or self.registers[register.name] != "pred":
            raise PtxError(
                f"{quoted(name)} guards an instruction but is not a predicate register", line
            )
        return register
