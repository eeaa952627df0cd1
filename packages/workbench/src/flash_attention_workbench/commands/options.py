# SPDX-License-Identifier: Apache-2.0
"""What the options of commands mean: rungs, architectures, numbers. Nothing imports torch."""

from __future__ import annotations

from flash_attention.arch import ARCHES, Arch, get_arch
from flash_attention.call.dtype import DType
from flash_attention.errors import UnsupportedError, quoted
from flash_attention.families.config import KernelConfig
from flash_attention.families.passes import Pass, read_pass
from flash_attention.ladder import Rung, get_ladder


def ladder_of(
    dtype: str, d_head: int, heads: int, pass_: str = Pass.FORWARD.value
) -> tuple[Rung, ...]:
    """The ladder for what the options say."""
    return get_ladder(DType.from_string(dtype), d_head, heads, pass_named(pass_))


def pass_named(name: str) -> Pass:
    """The pass that --pass names."""
    return read_pass("--pass", name)


def runs_on(config: KernelConfig) -> tuple[str, ...]:
    """The known architectures that a config is valid on."""
    return tuple(name for name, arch in ARCHES.items() if config.broken_rule(arch) is None)


def needs(config: KernelConfig) -> str:
    """The architectures that a config needs, in words."""
    names = runs_on(config)
    return "any" if len(names) == len(ARCHES) else ", ".join(names)


def last_rung_on(ladder: tuple[Rung, ...], arch: Arch) -> Rung:
    """The highest rung that runs on an architecture."""
    return [rung for rung in ladder if rung.config.broken_rule(arch) is None][-1]


def parse_arches(text: str) -> tuple[Arch, ...]:
    """The architectures of a comma-separated list."""
    return tuple(dict.fromkeys(get_arch(name.strip()) for name in text.split(",")))


def numbers_of(option: str, text: str | None) -> tuple[int, ...] | None:
    """Whole numbers, comma-separated; None where nothing is given."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    numbers = tuple(int(word) if word.isdecimal() and len(word) < 20 else 0 for word in words)
    if not all(numbers):
        raise UnsupportedError(f"{option} is {quoted(text)}; pass whole numbers, as in 64,128")
    return numbers
