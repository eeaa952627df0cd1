# SPDX-License-Identifier: Apache-2.0
"""The loop over key blocks in machine code, and what it does for each block."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flash_attention.arch import WARP_SIZE
from flash_attention.errors import UnsupportedError
from flash_attention_workbench.inspect.key_block import KeyBlock
from flash_attention_workbench.inspect.loops import HotLoop, Line, hot_loop
from flash_attention_workbench.inspect.sass import Instruction, instruction_mix, opcode_counts
from flash_attention_workbench.inspect.sm_rates import Work

WARPGROUP_WARPS = 4  # share a wgmma
_GMMA = re.compile(r"[HQ]GMMA\.(\d+)x(\d+)x(\d+)")
_GMMA_DEPTH_BYTES = 32  # of both operands, whatever their type
_HMMA = re.compile(r"HMMA\.(16)(8)(16|8)(?!\d)")
_LDSM = re.compile(r"LDSM\.16\.MT?88\.([124])|LDSM\.16\.MT?88")
_MATRIX_BYTES = 128  # 8 rows of 8 elements of 16 bits
_NEVER = "!PT"
_KINDS = ("HGMMA", "QGMMA", "HMMA", "MUFU", "LDSM", "SHFL", "BAR", "SYNCS")
"""Opcodes of which the first modifier tells kinds apart."""


@dataclass(frozen=True)
class MachineLoop:
    """The hot loop of a kernel; counts are those of one warp that computes."""

    instructions: tuple[Instruction, ...]  # of the kernel
    loop: HotLoop
    block: KeyBlock

    @classmethod
    def of(cls, instructions: Sequence[Instruction], block: KeyBlock) -> MachineLoop:
        loop = hot_loop(flow(instructions))
        if loop is None:
            raise UnsupportedError("no loop of this kernel multiplies on tensor cores")
        return cls(tuple(instructions), loop, block)

    @property
    def body(self) -> list[Instruction]:
        return [self.instructions[line] for line in sorted(self.loop.lines)]

    @property
    def straight(self) -> list[Instruction]:
        """What every turn executes: no way around it, and a predicate that can be true."""
        lines = sorted(self.loop.lines - self.loop.skippable)
        return [self.instructions[line] for line in lines if self._can_run(line)]

    def _can_run(self, line: int) -> bool:
        return self.instructions[line].predicate != _NEVER

    @property
    def blocks_a_turn(self) -> float:
        """Key blocks of one turn of the loop, by the products in it."""
        flop = sum(warp_flop(one.opcode) for one in self.straight)
        return flop * self.block.warps / self.block.flop

    def mix(self) -> dict[str, float]:
        """Instructions of every turn by what they do, for a key block."""
        counted = instruction_mix(opcode_counts(self.straight))
        return {name: count / self.blocks_a_turn for name, count in counted.items()}

    def opcodes(self) -> Counter[str]:
        """Instructions of every turn by opcode and the modifier that tells kinds apart."""
        return Counter(_spelled(one) for one in self.straight)

    def work(self) -> Work:
        """What a key block asks of the multiprocessor, from these instructions."""
        mix, warps = self.mix(), self.block.warps
        shared = sum(shared_bytes(one) for one in self.straight) / self.blocks_a_turn
        return Work(
            tensor_flop=self.block.flop * self.block.itemsize / 2,
            special_functions=WARP_SIZE * warps * mix["special function"],
            fp32=WARP_SIZE * warps * mix["fp32"],
            shared_bytes=warps * shared,
            instructions=warps * sum(mix.values()),
        )


def flow(instructions: Sequence[Instruction]) -> list[Line]:
    """Where the instructions of a kernel go, and the products they do.

    In a kernel of wgmma those of mma.sync count for nothing: they compute scores again where a
    stale maximum does not suffice, which is seldom.
    """
    places = {one.address: place for place, one in enumerate(instructions)}
    names = {one.name for one in instructions}
    product = next((name for name in ("HGMMA", "QGMMA") if name in names), "HMMA")
    return [
        Line(
            None if one.target is None else places.get(one.target),
            not _ends(one),
            warp_flop(one.opcode) if one.name == product else 0,
        )
        for one in instructions
    ]


def _ends(one: Instruction) -> bool:
    """Whether nothing after an instruction follows it: a jump without a condition, or the end."""
    if one.predicate:
        return False
    return one.name in ("EXIT", "RET") or (one.name == "BRA" and one.operands.startswith("`"))


def warp_flop(opcode: str) -> int:
    """FLOP of a tensor-core instruction that one warp does; 0 for any other."""
    if shape := _GMMA.match(opcode):
        m, n, k = map(int, shape.groups())
        return 2 * m * n * k // WARPGROUP_WARPS
    if shape := _HMMA.match(opcode):
        m, n, k = map(int, shape.groups())
        return 2 * m * n * k
    return 0


def shared_bytes(one: Instruction) -> float:
    """Bytes of shared memory that an instruction moves for one warp, operands of wgmma too."""
    if shape := _GMMA.match(one.opcode):
        m, n, _ = map(int, shape.groups())
        queries = m if re.search(r"^\w+, gdesc", one.operands) else 0  # else A is in registers
        return _GMMA_DEPTH_BYTES * (queries + n) / WARPGROUP_WARPS
    if matrices := _LDSM.match(one.opcode):
        return _MATRIX_BYTES * int(matrices[1] or 1)
    if one.name == "STSM":
        return _MATRIX_BYTES * int((re.search(r"\.([124])$", one.opcode) or ("", "1"))[1])
    if one.name in ("LDS", "STS"):
        bits = re.search(r"\.(64|128)", one.opcode)
        return WARP_SIZE * (int(bits[1]) // 8 if bits else 4)
    return 0


def _spelled(one: Instruction) -> str:
    kept = (
        2 if one.name in ("HGMMA", "QGMMA", "HMMA", "MUFU", "LDSM", "SHFL", "BAR", "SYNCS") else 1
    )
    return ".".join(one.opcode.split(".")[:kept])
