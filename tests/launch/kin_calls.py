# SPDX-License-Identifier: Apache-2.0
"""Calls whose sequences have lengths of their own: of a serving engine, and of training."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flash_attention.call.backward_call import BackwardCall, Wanted
from flash_attention.call.call import Call

D, PAGE, PAGES = 64, 16, 24
SEQUENCES = 40  # at most, in random lengths


def starts(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def rows(count: int, heads: int) -> Tensor:
    return torch.empty(count, heads, D, dtype=torch.bfloat16)


def filled(call: Call) -> Call:
    for tensor in call[:3]:
        tensor.normal_()
    return call


def paged(queries: list[int], used: list[int], width: int = 0, **options: Any) -> Call:
    """A step of a serving engine: packed queries over pages."""
    width = width or -(-max(used) // PAGE)
    k, v = (torch.empty(PAGES, PAGE, 2, D, dtype=torch.bfloat16) for _ in range(2))
    return Call(
        *(rows(sum(queries), 4), k, v),
        cu_seqlens_q=starts(queries),
        max_seqlen_q=max(queries),
        seqused_k=torch.tensor(used).int(),
        block_table=torch.randint(0, PAGES, (len(queries), width)).int(),
        **{"causal": True, **options},
    )


def packed(queries: list[int], keys: list[int], **options: Any) -> Call:
    return Call(
        *(rows(sum(queries), 4), rows(sum(keys), 2), rows(sum(keys), 2)),
        cu_seqlens_q=starts(queries),
        max_seqlen_q=max(queries),
        cu_seqlens_k=starts(keys),
        max_seqlen_k=max(keys),
        **{"causal": True, **options},
    )


def backward(queries: list[int], keys: list[int], **options: Any) -> BackwardCall:
    dlse, wanted = options.pop("dlse", False), options.pop("wanted", Wanted())
    deterministic = options.pop("deterministic", False)
    call = packed(queries, keys, **options)
    call = call._replace(out=torch.empty_like(call.q))
    lse = torch.empty(4, sum(queries))
    given = torch.empty_like(lse) if dlse else None
    return BackwardCall(torch.empty_like(call.q), call, lse, given, wanted, deterministic)


def serving(r: random.Random, **options: Any) -> Call:
    queries = [1] * r.randint(1, SEQUENCES) + r.choice(([], [r.randint(1, 3000)]))
    used = [r.randint(max(1, count), 2 * count + 200) for count in queries]
    return paged(queries, used, -(-max(used) // PAGE) + r.randint(0, 9), **options)


def lengths(r: random.Random) -> tuple[list[int], list[int]]:
    count = r.randint(1, SEQUENCES)
    return tuple([r.randint(1, r.choice((9, 300, 1500))) for _ in range(count)] for _ in range(2))  # type: ignore[return-value]


def with_out(call: Call) -> Call:
    return call._replace(out=torch.empty_like(call.q))


SINKS = torch.zeros(4)
MAKE: dict[str, Callable[[random.Random], Any]] = {
    "serving": serving,
    "serving, bound": lambda r: serving(r, max_seqlen_k=r.choice((7, 300, 5000))),
    "serving, window": lambda r: serving(r, causal=False, window=(r.choice((128,)), 0)),
    "serving, lse, sinks": lambda r: serving(r, return_lse=True, sinks=SINKS, softcap=9.0),
    "serving, out": lambda r: with_out(serving(r)),
    "packed": lambda r: packed(*lengths(r)),
    "packed, window": lambda r: packed(*lengths(r), causal=False, window=(None, 900)),
    "packed queries": lambda r: packed_queries(r),
    "backward": lambda r: backward(*lengths(r)),
    "backward, dk and dv": lambda r: backward(*lengths(r), wanted=Wanted(dq=False)),
    "backward, deterministic": lambda r: backward(*lengths(r), deterministic=True),
    "backward, sinks": lambda r: backward(
        *lengths(r), sinks=SINKS, dlse=True, wanted=Wanted(dsinks=True)
    ),
    "backward, softcap": lambda r: backward(*lengths(r), softcap=8.0, causal=False),
}


def of_8_bits(call: Call, one_factor: bool = False) -> Call:
    """The call with q, k and v of 8 bits, and their factors."""
    batch = call.cu_seqlens_q.numel() - 1 if call.cu_seqlens_q is not None else len(call.q)
    factors: dict[str, Any] = {
        f"{name}_descale": torch.ones(1) if one_factor else torch.ones(batch, 2) for name in "qkv"
    }
    eight: dict[str, Any] = {name: getattr(call, name).to(torch.float8_e4m3fn) for name in "qkv"}
    return call._replace(**eight, **factors)


MAKE_8_BITS: dict[str, Callable[[random.Random], Call]] = {
    "serving": lambda r: of_8_bits(serving(r)),
    "serving, one factor": lambda r: of_8_bits(serving(r, return_lse=True), one_factor=True),
    "packed": lambda r: of_8_bits(packed(*lengths(r))),
}


def packed_queries(r: random.Random) -> Call:
    """Packed queries, and keys in a batch."""
    queries, _ = lengths(r)
    k, v = (torch.empty(len(queries), 320, 2, D, dtype=torch.bfloat16) for _ in range(2))
    used = torch.full((len(queries),), 77).int()
    call = packed(queries, queries)
    return call._replace(k=k, v=v, cu_seqlens_k=None, max_seqlen_k=None, seqused_k=used)
