# SPDX-License-Identifier: Apache-2.0
"""What the rules of all families share: violations, and the allowed values of fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

from flash_attention.arch import REGISTERS_PER_THREAD, Arch
from flash_attention.call.dtype import DType

Choices = Mapping[str, tuple[int, ...] | range]


@dataclass(frozen=True)
class Violation:
    """A rule that a config breaks. The message says what was given and what is allowed."""

    rule: str
    message: str


def wrong_values(
    cfg: Any, choices: Choices, enums: tuple[type[IntEnum], ...] = (DType,)
) -> Iterator[Violation]:
    """Yield a violation for each field that has the wrong type or none of its `choices`."""
    enum_of = {enum.__name__: enum for enum in enums}
    for field in fields(cfg):
        name, value = field.name, getattr(cfg, field.name)
        if field.type in enum_of:
            enum = enum_of[field.type]
            if not isinstance(value, enum):
                members = " or ".join(f"{enum.__name__}.{member.name}" for member in enum)
                yield Violation(name, f"{name}={value!r}: use {members}")
        elif field.type == "bool":
            if not isinstance(value, bool):
                yield Violation(name, f"{name}={value!r}: use True or False")
        else:
            allowed = choices.get(name)
            integer = isinstance(value, int) and not isinstance(value, bool)
            if not integer or (allowed is not None and value not in allowed):
                yield Violation(name, f"{name}={value!r}: use {_said(allowed)}")


def _said(allowed: tuple[int, ...] | range | None) -> str:
    if allowed is None:
        return "an integer"
    if isinstance(allowed, range):
        kind = "an integer" if allowed.step == 1 else f"a multiple of {allowed.step}"
        return f"{kind} from {allowed[0]} to {allowed[-1]}"
    return f"one of {', '.join(map(str, allowed))}"


def memory_violations(
    smem_bytes: int, registers: int, arch: Arch, *, blocks: str, smaller: str, fewer: str
) -> Iterator[Violation]:
    """Yield a violation for more shared memory, or registers a thread, than `arch` has.

    `blocks` are what takes the shared memory. `smaller` and `fewer` are what to do about each.
    """
    if smem_bytes > arch.max_smem_per_cta:
        yield Violation(
            "shared_memory",
            f"blocks of {blocks} take {smem_bytes} bytes of shared memory, "
            f"{smem_bytes - arch.max_smem_per_cta} more than a CTA of {arch.name} may have "
            f"({arch.max_smem_per_cta}): {smaller}",
        )
    if registers > REGISTERS_PER_THREAD:
        yield Violation(
            "registers",
            f"accumulators and fragments need about {registers} registers a thread, a thread has "
            f"{REGISTERS_PER_THREAD}: {fewer}",
        )


def smallest_holding(choices: Iterable[int], *values: int) -> int:
    """Return the smallest choice that is not below any of the values, or 0 if there is none."""
    return min((choice for choice in choices if choice >= max(values)), default=0)
