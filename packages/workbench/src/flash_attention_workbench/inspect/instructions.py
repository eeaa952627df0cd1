# SPDX-License-Identifier: Apache-2.0
"""Instruction counts of a compiled kernel: SASS where nvdisasm is installed, else PTX."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from flash_attention.compile import CompiledKernel
from flash_attention_workbench.inspect import sass

_PTX_INSTRUCTION = re.compile(
    r"^[ \t]*(?:\{[ \t]*)?(?:@!?%\w+[ \t]+)?([a-z]\w*(?:(?:\.|::)\w+)*)\b[^;:]*;", re.MULTILINE
)
_PTX_CLASSES = (
    ("tensor core", r"mma\.|wgmma\.mma_async"),
    ("shared read", r"ldmatrix|ld\.shared"),
    ("shared write", r"stmatrix|st\.shared"),
    ("async copy", r"cp\.async\.c[ag]|cp\.async\.bulk\.tensor"),
    ("global", r"(ld|st)\.(global|v4|volatile)|atom|red\."),
    ("special function", r"ex2|rcp|lg2|div\.(full|approx)"),
    ("fp32", r"(add|sub|mul|fma|max|min|neg)\.(rn\.|ftz\.)*f32"),
    ("convert", r"cvt"),
    ("move", r"mov|selp|prmt|shfl|ld\.param"),
    ("control", r"bra|bar|ret|setp|exit|cp\.async|wgmma|mbarrier|fence|membar|setmaxnreg|elect"),
    ("integer", r"(add|sub|mul|mad|and|or|xor|not|shl|shr|min|max|rem|div|bfe|bfi|lop3|shf)\."),
)


@dataclass(frozen=True)
class InstructionCounts:
    """How often each opcode stands in a kernel, by itself and by class; `language` says of what."""

    language: str
    opcodes: Counter[str]
    mix: dict[str, int]


def count_instructions(compiled: CompiledKernel) -> InstructionCounts:
    """Counts the machine code, or the PTX where nothing can disassemble it."""
    try:
        opcodes = sass.opcode_counts(sass.disassemble(compiled.cubin))
    except sass.InspectorMissing:
        opcodes = Counter(_PTX_INSTRUCTION.findall(compiled.ptx))
        return InstructionCounts("PTX", opcodes, ptx_mix(opcodes))
    return InstructionCounts("SASS", opcodes, sass.instruction_mix(opcodes))


def ptx_mix(opcodes: Counter[str]) -> dict[str, int]:
    """PTX opcode counts by class."""
    mix = dict.fromkeys([name for name, _ in _PTX_CLASSES] + ["other"], 0)
    for opcode, count in opcodes.items():
        mix[_ptx_class(opcode)] += count
    return mix


def _ptx_class(opcode: str) -> str:
    for name, pattern in _PTX_CLASSES:
        if re.match(pattern, opcode):
            return name
    return "other"
