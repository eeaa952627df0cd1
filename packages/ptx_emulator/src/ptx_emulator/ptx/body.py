# SPDX-License-Identifier: Apache-2.0
"""The body of a kernel: its scopes, labels and locations, and the functions that it calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ptx_emulator.errors import PtxError, quoted
from ptx_emulator.ptx.declarations import NAME, read_registers, read_variables
from ptx_emulator.ptx.functions import (
    AFTER,
    RETURN,
    Function,
    checked_call,
    is_scalar,
    jump,
    moves,
)
from ptx_emulator.ptx.lower import CARRY, branch_table, lowered, uses_carry
from ptx_emulator.ptx.model import (
    Instruction,
    Label,
    Operand,
    Param,
    Reg,
    Symbol,
    Variable,
    Vector,
)
from ptx_emulator.ptx.operands import read_operands
from ptx_emulator.ptx.text import Text

_LOC = re.compile(r"\.loc((?:\s+\d+){2,3})\b(?:.*\binlined_at((?:\s+\d+){2,3}))?")
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
_INSTRUCTION = re.compile(r"(?:@\s*(!?)\s*([%$\w.]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.DOTALL)

_BRANCHES = ("bra", "brx")
_ENDS = ("ret", "exit", "bra", "brx")
_VARIABLES = (".shared", ".extern", ".visible", ".weak", ".global", ".const", ".local", ".param")
_IGNORED = (".pragma", ".calltargets", ".callprototype")
_TABLE = ".branchtargets"

Places = tuple[tuple[str, int], ...]  # lines of the CUDA source


class Scope:
    """What is settled when a pair of braces closes; `suffix` makes its names unique."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix
        self.hidden: dict[str, Operand | None] = {}
        self.labels: set[str] = set()
        self.jumps: list[tuple[Instruction, str]] = []


class Body:
    """The body of one kernel; `names` is what can be named at the place being read."""

    def __init__(
        self,
        text: Text,
        names: Mapping[str, Operand],
        functions: Mapping[str, Function],
        params: tuple[Param, ...],
    ) -> None:
        self.text = text
        self.functions = functions
        self.names: dict[str, Operand] = dict(names)
        self.names.update((param.name, Symbol(param.name)) for param in params)
        self.registers: dict[str, str] = {}
        self.shared: list[Variable] = []
        self.local: list[Variable] = []
        self.call_params: set[str] = set()
        self.structures: set[str] = set()  # those among the arguments and results of calls
        self.called: list[Function] = []
        self.calling: list[str] = []  # the functions that are being read
        self.last_label = ""
        self.tables: dict[str, list[str]] = {}  # labels that a brx.idx chooses from
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.location: tuple[str, int] | None = None
        self.callers: Places = ()
        self.calls: Places = ()  # of the function that is being read
        self.inlined_at: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.chains: dict[Places, Places] = {}
        self.scopes = [Scope("")]
        self.scope_count = 0

    def read(self, position: int, first_line: int) -> None:
        """Reads up to the brace that closes the kernel."""
        self._read(position, first_line)
        self._end_with_return(self.text.line)

    def _read(self, position: int, first_line: int) -> None:
        """Reads up to the brace that closes the scope that is open."""
        text, outside = self.text, len(self.scopes) - 1
        while len(self.scopes) > outside:
            position = text.skip_blanks(position)
            match = _BODY_ITEM.match(text.text, position)
            if match is None:
                if position == len(text.text):
                    raise PtxError("the kernel that begins here is never closed", first_line)
                raise PtxError(f"no ';' ends {text.line_from(position)}", text.line)
            position = match.end()
            kind = match.lastgroup
            if kind == "statement":
                self._statement(match["statement"], text.line)
            elif kind == "loc":
                self._locate(match["loc"], text.line)
            elif kind == "label":
                self._label(match["label"], text.line)
            elif kind == "open":
                self._open()
            elif kind == "close":
                self._close()

    def _open(self) -> None:
        self.scope_count += 1
        self.scopes.append(Scope(f"@{self.scope_count}"))

    def _locate(self, directive: str, line: int) -> None:
        match = _LOC.match(directive)
        if match is None:
            raise PtxError(f"cannot read {quoted(directive)}", line)
        here = tuple(map(int, match[1].split()))
        caller = tuple(map(int, (match[2] or "").split()))
        self.inlined_at[here] = caller
        self.location = self._place(here)
        chain = (*self._chain(caller), *self.calls)
        self.callers = self.chains.setdefault(chain, chain)

    def _chain(self, caller: tuple[int, ...]) -> Places:
        """Where a function was inlined, and where that function was, up to the kernel."""
        found: list[tuple[str, int]] = []
        seen: set[tuple[int, ...]] = set()
        while caller and caller not in seen:
            seen.add(caller)
            place = self._place(caller)
            found += [place] if place is not None else []
            caller = self.inlined_at.get(caller, ())
        return tuple(found)

    def _place(self, at: tuple[int, ...]) -> tuple[str, int] | None:
        file = self.text.files.get(at[0])
        return (file, at[1]) if file is not None and at[1] else None

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
                Instruction("ret", ("ret",), (), None, False, line, self.location, "ret")
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
            if variable.space == "param" and "[" not in statement:
                self._declare_scalar(name, variable.size or 0, line)
                continue
            self._declare(name, Symbol(unique), line)
            if variable.space == "shared":
                self.shared.append(replace(variable, name=unique))
            elif variable.space in ("local", "param"):
                self.local.append(replace(variable, name=unique, space="local"))
            if variable.space == "param":
                self.structures.add(unique)

    def _declare_scalar(self, name: str, size: int, line: int) -> Reg:
        """An argument or a result of a call."""
        register = self._declare_register(name, f"b{8 * size}", line)
        self.call_params.add(register.name)
        return register

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
            self.location,
            text,
            self.callers,
        )
        if uses_carry(instruction):
            self.registers[CARRY.name] = "pred"
        if parts[0] == "brx":
            found = self._branch_table(instruction, label.strip(), line)
        elif parts[0] == "ret" and self.calling:
            found = [jump(instruction, RETURN)]
        else:
            instruction.operands = (*operands, Label(label.strip())) if jumps else operands
            found = lowered(instruction, self.call_params, self.structures)
        if function := self._called(found[0]):
            self._read_function(found[0], function)
        else:
            self._append(found)

    def _append(self, instructions: Iterable[Instruction]) -> None:
        for simple in instructions:
            if isinstance(target := simple.operands[-1] if simple.operands else None, Label):
                self.scopes[-1].jumps.append((simple, target.name))
            self.instructions.append(simple)

    def _called(self, instruction: Instruction) -> Function | None:
        """The function that is called, if its text is there."""
        if instruction.parts[0] != "call":
            return None
        callee = instruction.operands[1] if len(instruction.operands) > 1 else None
        return self.functions.get(callee.name) if isinstance(callee, Symbol) else None

    def _read_function(self, call: Instruction, function: Function) -> None:
        """Put the body of a function where it is called."""
        results, arguments = checked_call(call, function, self.calling, len(self.called))
        self.called.append(function)
        self._open()
        if call.predicate is not None:
            self._append([jump(call, AFTER, opposite=True)])
        given = self._bind(function.params, arguments, call.ptx_line)
        taken = self._bind(function.results, results, call.ptx_line)
        self._append(moves(call, given))
        before = self.location, self.callers, self.calls
        own = () if call.location is None else (call.location,)
        self.calls = self.callers = (*own, *call.callers)
        self.calling.append(function.name)
        self._open()
        with self.text.elsewhere(function.start, function.line):
            self._read(function.start, function.line)
        self.calling.pop()
        self.location, self.callers, self.calls = before
        self._label(RETURN, call.ptx_line)
        self._append(moves(call, [(theirs, ours, param) for ours, theirs, param in taken]))
        self._label(AFTER, call.ptx_line)
        self._close()

    def _bind(
        self, params: Sequence[Param], values: Sequence[Operand], line: int
    ) -> list[tuple[Operand, Operand, Param]]:
        """Give values the names that a function has for them: registers, or the same memory."""
        found: list[tuple[Operand, Operand, Param]] = []
        for param, value in zip(params, values, strict=True):
            if is_scalar(param):
                found.append((self._declare_scalar(param.name, param.size, line), value, param))
            else:
                self._declare(param.name, value, line)
        return found

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
