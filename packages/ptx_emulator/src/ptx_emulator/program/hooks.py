# SPDX-License-Identifier: Apache-2.0
"""Where a program tells a debugger what it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Hooks:
    """`stops`: the registers to show behind an instruction. `watching`: memory is watched."""

    stops: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    watching: bool = False
