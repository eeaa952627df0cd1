# SPDX-License-Identifier: Apache-2.0
"""Every conformance case, by name."""

from __future__ import annotations

from tests.emulator.conformance import (
    approx,
    control,
    convert,
    float32,
    integer,
    matrix,
    memory,
    packed,
    products,
    rare,
    warp,
    wide_integer,
)
from tests.emulator.conformance.case import Case

_MODULES = (
    integer,
    wide_integer,
    float32,
    approx,
    convert,
    warp,
    matrix,
    memory,
    control,
    packed,
    products,
    rare,
)

CASES: dict[str, Case] = {case.name: case for module in _MODULES for case in module.cases()}
