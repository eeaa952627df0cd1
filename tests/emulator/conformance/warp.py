# SPDX-License-Identifier: Apache-2.0
"""Instructions of a whole warp: shuffles, votes, reductions, lane masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.emulator.conformance.case import WARP, Array, Case, Op, elementwise

SIZE = 128
ALL = "0xffffffff"


def _by_warp(function: Callable[[Array], Any]) -> Callable[..., Array]:
    """Apply to the 32 values of each warp."""

    def apply(a: Array, *_: Array) -> Array:
        return np.concatenate([np.broadcast_to(function(w), WARP) for w in a.reshape(-1, WARP)])

    return apply


def _shuffled(mode: str, control: int, *, valid: bool) -> Callable[..., Array]:
    """shfl lane by lane, as the PTX ISA defines it; or whether its source is in range."""
    clamp, segment = control & 31, control >> 8 & 31

    def apply(a: Array, b: Array) -> Array:
        results = np.empty_like(a)
        for index in range(len(a)):
            warp, lane = divmod(index, WARP)
            offset = int(b[index]) & 31
            top = (lane & segment) | (clamp & ~segment)
            bottom = lane & segment
            source, in_range = {
                "up": (lane - offset, lane - offset >= top),
                "down": (lane + offset, lane + offset <= top),
                "bfly": (lane ^ offset, (lane ^ offset) <= top),
                "idx": (bottom | (offset & ~segment), (bottom | (offset & ~segment)) <= top),
            }[mode]
            value = a[warp * WARP + (source if in_range else lane)]
            results[index] = in_range if valid else value
        return results

    return apply


def _shuffle(mode: str, control: int) -> list[Op]:
    value = f"shfl.sync.{mode}.b32 %0, %1, %2, {control:#x}, {ALL};"
    flag = (
        f"{{.reg .pred p; .reg .b32 d; shfl.sync.{mode}.b32 d|p, %1, %2, {control:#x}, {ALL};"
        " selp.u32 %0, 1, 0, p;}"
    )
    name = f"shfl.sync.{mode} {control:#06x}"
    return [
        Op(name, value, _shuffled(mode, control, valid=False)),
        Op(f"{name} in range", flag, _shuffled(mode, control, valid=True)),
    ]


def _vote(mode: str, function: Callable[[Array], Any]) -> Op:
    text = (
        f"{{.reg .pred p, q; setp.lt.s32 p, %1, 0; vote.sync.{mode}.pred q, p, {ALL};"
        " selp.u32 %0, 1, 0, q;}"
    )
    return Op(f"vote.sync.{mode}", text, _by_warp(lambda w: np.uint32(function(w >> 31 == 1))))


def _ballot(warp: Array) -> int:
    return sum(1 << lane for lane in range(WARP) if warp[lane] >> 31)


def _redux(name: str, function: Callable[[Array], Any]) -> Op:
    text = f"redux.sync.{name} %0, %1, {ALL};"
    return Op(f"redux.sync.{name}", text, _by_warp(lambda w: np.uint32(function(w))))


OPS = [
    *_shuffle("up", 0x0000),
    *_shuffle("up", 0x1800),
    *_shuffle("down", 0x001F),
    *_shuffle("down", 0x181F),
    *_shuffle("bfly", 0x001F),
    *_shuffle("bfly", 0x1C1F),
    *_shuffle("idx", 0x001F),
    *_shuffle("idx", 0x181F),
    _vote("all", np.all),
    _vote("any", np.any),
    _vote("uni", lambda p: p.all() or not p.any()),
    Op(
        "vote.sync.ballot",
        f"{{.reg .pred p; setp.lt.s32 p, %1, 0; vote.sync.ballot.b32 %0, p, {ALL};}}",
        _by_warp(_ballot),
    ),
    _redux("add.u32", lambda w: int(w.astype(np.uint64).sum()) & 0xFFFFFFFF),
    _redux("min.u32", np.min),
    _redux("max.u32", np.max),
    _redux("min.s32", lambda w: w.view(np.int32).min().astype(np.uint32)),
    _redux("max.s32", lambda w: w.view(np.int32).max().astype(np.uint32)),
    _redux("and.b32", np.bitwise_and.reduce),
    _redux("or.b32", np.bitwise_or.reduce),
    _redux("xor.b32", np.bitwise_xor.reduce),
    Op("laneid", "mov.u32 %0, %%laneid;", lambda a, b: np.arange(len(a)) % WARP),
    Op("activemask", "activemask.b32 %0;", lambda a, b: np.full(len(a), 0xFFFFFFFF)),
]

ELECT = [
    Op(
        "elect.sync",
        f"{{.reg .pred p; .reg .b32 d; elect.sync d|p, {ALL}; selp.u32 %0, 1, 0, p;}}",
        lambda a: np.arange(len(a)) % WARP == 0,
    )
]


def cases() -> list[Case]:
    rng = np.random.default_rng(15)
    values = rng.integers(0, 1 << 32, SIZE, np.uint64).astype(np.uint32)
    values[32:64] |= 1 << 31
    values[64:96] &= 0x7FFFFFFF
    offsets = rng.integers(0, 40, SIZE).astype(np.uint32)
    return [
        elementwise("warp", OPS, (values, offsets)),
        elementwise("elect", ELECT, (values,), arch="sm_90a"),
    ]
