# SPDX-License-Identifier: Apache-2.0
"""How far two results of one instruction are apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.emulator.conformance.case import Array, Case, Part, floats


@dataclass(frozen=True)
class Verdict:
    """One instruction: `agrees` is the share of equal bits patterns, `steps` the worst distance."""

    case: str
    instruction: str
    ulp: int
    agrees: float
    steps: int
    ok: bool
    first_difference: str = ""


def judge(case: Case, got: Array, wanted: Array, *, slack: int = 0) -> list[Verdict]:
    """`got` against `wanted`, part by part; `slack` widens what is allowed of inexact parts."""
    verdicts = []
    start = 0
    for part in case.parts:
        stop = start + part.expected.size
        verdicts.append(_judge(case, part, got[start:stop], wanted[start:stop], slack))
        start = stop
    return verdicts


def _judge(case: Case, part: Part, got: Array, wanted: Array, slack: int) -> Verdict:
    same = got == wanted
    distance = np.where(same, 0, 1)
    if part.real:
        x, y = floats(got), floats(wanted)
        same |= np.isnan(x) & np.isnan(y)
        distance = np.where(same, 0, np.maximum(np.abs(_ordered(got) - _ordered(wanted)), 1))
        distance[np.isnan(x) != np.isnan(y)] = np.iinfo(np.int64).max
        with np.errstate(invalid="ignore"):
            distance[np.abs(x - y) <= part.absolute] *= int(not part.ulp)
    good = distance <= (part.ulp + slack if part.ulp else 0)
    first = int(np.argmin(good))
    return Verdict(
        case=case.name,
        instruction=part.name,
        ulp=part.ulp,
        agrees=float(same.mean()),
        steps=int(distance.max()),
        ok=bool(good.all()),
        first_difference=""
        if good.all()
        else f"element {first}: got {int(got[first]):#x}, wanted {int(wanted[first]):#x}",
    )


def _gives_a_float(instruction: str) -> bool:
    """Whether the result is a float32: one NaN is as good as another, payloads are not modelled."""
    types = [part for part in instruction.split(".") if part in ("f32", "f16", "s32", "u32")]
    return types[: 1 if instruction.startswith("cvt") else None][-1:] == ["f32"]


def _ordered(words: Array) -> Array:
    """Float bit patterns as integers in the order of the numbers; both zeros are 0."""
    magnitude = (words & 0x7FFFFFFF).astype(np.int64)
    return np.where(words >> 31 == 1, -magnitude, magnitude)
