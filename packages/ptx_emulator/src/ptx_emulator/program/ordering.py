# SPDX-License-Identifier: Apache-2.0
"""What accesses to memory and fences say about order between threads."""

from __future__ import annotations

from typing import NamedTuple

from ptx_emulator.ptx.model import Instruction

STRONG = {"relaxed", "acquire", "release", "acq_rel", "volatile", "mmio"}


class Ordering(NamedTuple):
    """The order that an access asks for. Weak accesses may not race with any other ones."""

    strong: bool
    acquires: bool
    releases: bool
    scope: str  # "cta" or "gpu"
    read_only: bool  # through the cache for data that no thread writes


WEAK = Ordering(strong=False, acquires=False, releases=False, scope="gpu", read_only=False)


def ordering_of(instruction: Instruction) -> Ordering:
    parts = set(instruction.parts)
    return Ordering(
        strong=instruction.parts[0] in ("atom", "red") or not STRONG.isdisjoint(parts),
        acquires=not parts.isdisjoint({"acquire", "acq_rel"}),
        releases=not parts.isdisjoint({"release", "acq_rel"}),
        scope="cta" if "cta" in parts else "gpu",
        read_only="nc" in parts,
    )


def scope_of_fence(instruction: Instruction) -> str | None:
    """The threads that a fence orders, "cta" or "gpu"; None of one between proxies, or of one that
    orders nothing but mbarrier.init."""
    if not {"proxy", "mbarrier_init"}.isdisjoint(instruction.parts):
        return None
    return "cta" if "cta" in instruction.parts else "gpu"


def has_fences(instructions: tuple[Instruction, ...]) -> bool:
    """Whether a kernel has fences between threads."""
    fences = (i for i in instructions if i.parts[0] in ("fence", "membar"))
    return any(scope_of_fence(fence) is not None for fence in fences)


def moves_in_bulk(instruction: Instruction) -> bool:
    """Whether a copy engine accesses global memory."""
    return instruction.parts[0] == "cp" and {"bulk", "global"} <= set(instruction.parts)


def copies_meet_flags(instructions: tuple[Instruction, ...]) -> bool:
    """Whether flags may have to order what copy engines do to global memory."""
    return ctas_exchange(instructions) and any(map(moves_in_bulk, instructions))


def ctas_exchange(instructions: tuple[Instruction, ...]) -> bool:
    """Whether CTAs may learn from each other, so that their order matters: by atomics and strong
    accesses to global memory, or by additions of copy engines."""
    return any(
        i.parts[:2] == ("cp", "reduce") or (_strong_access(i) and not _on_shared(i))
        for i in instructions
    )


def _strong_access(instruction: Instruction) -> bool:
    accesses = ("ld", "st", "atom", "red")
    return instruction.parts[0] in accesses and ordering_of(instruction).strong


def _on_shared(instruction: Instruction) -> bool:
    return any(part.split("::")[0] == "shared" for part in instruction.parts)


def may_be_shared(instruction: Instruction) -> bool:
    """Whether an access may go to shared memory: it names it, or no memory."""
    elsewhere = {"global", "local", "param", "const"}
    return elsewhere.isdisjoint(part.split("::")[0] for part in instruction.parts)
