# SPDX-License-Identifier: Apache-2.0
"""Calls: printf and assertions. Every other function must be inlined."""

from __future__ import annotations

from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import emits, refuse
from ptx_emulator.ptx.model import Instruction, Symbol, Vector


@emits("call")
def call(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    results, function, arguments = (*instruction.operands, None, None)[:3]
    if not isinstance(function, Symbol) or not isinstance(arguments, Vector):
        raise refuse(instruction, "a call through a pointer is not emulated")
    if function.name == "vprintf":
        text, values = (emitter.array(item, "u64") for item in arguments.items)
        said = f"m.printer.print(s, {text}, {values}, {predicate}, {emitter.pc})"
        count = emitter.temporary(said, "u32")
        if isinstance(results, Vector) and results.items:
            emitter.write(results.items[0], count, "u32", predicate)
    elif function.name == "__assertfail":
        message, file = (emitter.array(item, "u64") for item in arguments.items[:2])
        line = emitter.array(arguments.items[2], "u32")
        emitter.line(f"m.printer.fail(s, {message}, {file}, {line}, {predicate}, {emitter.pc})")
    else:
        raise refuse(
            instruction, f"{function.name} is called, not inlined: declare it __forceinline__"
        )
