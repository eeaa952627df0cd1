# SPDX-License-Identifier: Apache-2.0
"""What the rules of all families share: violations, values of fields, and what they need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from flash_attention.arch import REGISTERS_PER_THREAD, Arch
from flash_attention.families.fields import Values, declarations, literal


@dataclass(frozen=True)
class Violation:
    """A rule that a config breaks. The message says what was given and what is allowed."""

    rule: str
    message: str


def wrong_values(cfg: object) -> Iterator[Violation]:
    """Yield a violation for each field that has the wrong type or none of its declared values."""
    for name, declared in declarations(type(cfg)).items():
        value, allowed = getattr(cfg, name), declared.values
        kind = type(allowed[0]) if allowed else int
        typed = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
        if not typed or (allowed is not None and value not in allowed):
            yield Violation(name, f"{name}={value!r}: use {_said(allowed)}")


def unmet_needs(cfg: object) -> Iterator[Violation]:
    """Yield a violation for each field that needs another value of another field."""
    for name, declared in declarations(type(cfg)).items():
        value = getattr(cfg, name)
        for need in declared.needs if value != declared.off else ():
            if not need.is_met(cfg):
                yield Violation(
                    need.rule or f"{name}_needs_{need.field}",
                    f"{name}={literal(value)} {need.why}: set {need.field}={literal(need.value)} or"
                    f" {name}={literal(declared.off)}",
                )


def _said(allowed: Values | None) -> str:
    if allowed is None:
        return "an integer"
    if isinstance(allowed, range):
        kind = "an integer" if allowed.step == 1 else f"a multiple of {allowed.step}"
        return f"{kind} from {allowed[0]} to {allowed[-1]}"
    if isinstance(allowed[0], bool):
        return "True or False"
    if isinstance(allowed[0], Enum):
        return " or ".join(map(literal, allowed))
    return f"one of {', '.join(map(str, allowed))}"


def not_hopper(arch: Arch, what: str, instead: str = "") -> Iterator[Violation]:
    """Yield a violation unless `arch` runs Hopper kernels. `what` is the config."""
    if arch.name != "sm_90":
        hint = f": use {instead}" if instead else ""
        yield Violation(
            "architecture", f"{what} needs sm_90 (H100, H200), this is {arch.name}{hint}"
        )


def too_large(buffers: str, smem_bytes: int, arch: Arch, smaller: str) -> Iterator[Violation]:
    """Yield a violation if `buffers` take more shared memory than `arch` has. `smaller` is what to
    do about it."""
    if (excess := smem_bytes - arch.max_smem_per_cta) > 0:
        yield Violation(
            "shared_memory",
            f"{buffers} take {smem_bytes} bytes of shared memory, {excess} more than a CTA of"
            f" {arch.name} may have ({arch.max_smem_per_cta}): {smaller}",
        )


def memory_violations(
    smem_bytes: int, registers: int, arch: Arch, *, blocks: str, smaller: str, fewer: str
) -> Iterator[Violation]:
    """Yield a violation for more shared memory, or registers a thread, than `arch` has.

    `blocks` are what takes the shared memory. `smaller` and `fewer` are what to do about each.
    """
    yield from too_large(f"blocks of {blocks}", smem_bytes, arch, smaller)
    if registers > REGISTERS_PER_THREAD:
        yield Violation(
            "registers",
            f"accumulators and fragments need about {registers} registers a thread, a thread has "
            f"{REGISTERS_PER_THREAD}: {fewer}",
        )


def smallest_holding(choices: Iterable[int], *values: int) -> int:
    """Return the smallest choice that is not below any of the values, or 0 if there is none."""
    return min((choice for choice in choices if choice >= max(values)), default=0)
