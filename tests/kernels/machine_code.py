# SPDX-License-Identifier: Apache-2.0
"""A kernel's machine code with its loops, found by their backward branches."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass

from flash_attention_workbench.inspect.sass import (
    PRINT_CODE,
    Instruction,
    find_nvdisasm,
    parse_disassembly,
)

_LABEL = re.compile(r"^\s*(\.L\w+):", re.MULTILINE)
_ADDRESS = re.compile(r"/\*([0-9a-f]{4,})\*/\s")
_TARGET = re.compile(r"`\((\.L\w+)\)")


@dataclass(frozen=True)
class MachineCode:
    """Instructions, and the address that each label stands for."""

    instructions: list[Instruction]
    labels: dict[str, int]

    @classmethod
    def of(cls, cubin: bytes) -> MachineCode:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            command = [find_nvdisasm(), *PRINT_CODE, file.name]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        labels = {
            label[1]: int(following[1], 16)
            for label in _LABEL.finditer(text)
            if (following := _ADDRESS.search(text, label.end()))
        }
        return cls(parse_disassembly(text), labels)

    def innermost_loops(self, holding: str) -> list[list[Instruction]]:
        """The loops that hold an instruction called `holding` and no smaller loop that does.

        A loop is what lies between a conditional backward branch and its target. Waits that spin
        out of line return by an unconditional one, and are left out.
        """
        loops: dict[tuple[int, int], list[Instruction]] = {}
        for branch in self.instructions:
            target = _TARGET.search(branch.operands) if branch.name == "BRA" else None
            if target and branch.predicate and (start := self.labels[target[1]]) <= branch.address:
                body = [i for i in self.instructions if start <= i.address <= branch.address]
                if any(i.name == holding for i in body):
                    loops[start, branch.address] = body
        return [body for span, body in loops.items() if not any(_inside(s, span) for s in loops)]


def _inside(span: tuple[int, int], other: tuple[int, int]) -> bool:
    return span != other and other[0] <= span[0] and span[1] <= other[1]
