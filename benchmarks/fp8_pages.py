# SPDX-License-Identifier: Apache-2.0
"""Chunks of 8-bit queries over an 8-bit cache, every output checked:

python benchmarks/fp8_pages.py [--repeats 15]

The FP8 kernels read pages, and the same keys where they are contiguous. Beside them are the kernels
that convert keys to 16 bits. The time includes the kernel that transposes V.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flash_attention import HopperForwardKernelConfig, HopperFp8KernelConfig, forward
from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.choose.heuristic import select_config
from flash_attention.families.sm90.forward.heuristic import heuristic
from flash_attention.launch.device import current_arch
from flash_attention.reference.judge import cu_seqlens
from flash_attention.reference.oracle import oracle
from flash_attention_workbench.bench.timing import Contender, time_in_turn

E4M3 = torch.float8_e4m3fn
CHECKED_ROWS = 256  # of the first head of each sequence
PAGED, CONTIGUOUS, CONVERTED = "pages", "contiguous", "converted"
MOST_ERROR = {PAGED: 3.5e-2, CONTIGUOUS: 3.5e-2, CONVERTED: 1e-2}


@dataclass(frozen=True)
class Chunk:
    """Queries and keys of sequences, and the heads that they have."""

    page: int
    queries: tuple[int, ...] = (2048,)
    keys: tuple[int, ...] = (8192,)
    heads: int = 32
    heads_k: int = 8
    d: int = 128

    def __str__(self) -> str:
        lengths = ", ".join(f"{q} at {k}" for q, k in zip(self.queries, self.keys, strict=True))
        return f"pages of {self.page:3d}, {self.heads}:{self.heads_k} heads, d {self.d}, {lengths}"


CHUNKS = [
    *(Chunk(page) for page in (16, 32, 64, 128, 256)),
    Chunk(16, (1500,) * 4, (1500,) * 4),
    Chunk(64, (2048,), (30000,)),
    Chunk(16, (*(1,) * 8, 2048), (*(2000,) * 8, 8192)),
    Chunk(16, heads=64, heads_k=8, d=64),
    Chunk(64, heads=16, heads_k=8, d=256),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    for chunk in CHUNKS:
        print(measure(chunk, given.repeats), flush=True)


def measure(chunk: Chunk, repeats: int) -> str:
    """Time a chunk, check what was computed, and tell both."""
    device = torch.device("cuda", torch.cuda.current_device())
    dense = call_of(chunk, device)
    paged = in_pages(dense, chunk.page)
    problem, arch = Problem.of(paged), current_arch()
    own, converting = select_config(problem, arch), heuristic(problem, arch)
    assert isinstance(own, HopperFp8KernelConfig)
    assert isinstance(converting, HopperForwardKernelConfig)
    runs: dict[str, tuple[Any, Call]] = {
        PAGED: (own, paged),
        CONTIGUOUS: (own, dense),
        CONVERTED: (converting, paged),
    }
    contenders = [
        Contender(name, partial(forward, config, *call[:3], None, **call.keywords()))
        for name, (config, call) in runs.items()
    ]
    rows, exact = exact_rows(chunk, dense)
    errors = {}

    def check(name: str, out: Tensor) -> None:
        errors[name] = float((out[rows, 0].double() - exact).norm() / exact.norm())
        if not errors[name] <= MOST_ERROR[name]:
            raise SystemExit(f"{name}, {chunk}: relative RMS error {errors[name]:.2e}")

    timings = time_in_turn(contenders, device=device, repeats=repeats, check=check)
    parts = (f"{n} {t.median_ms * 1e3:.0f} us ({errors[n]:.1e})" for n, t in timings.items())
    return f"{chunk}: {', '.join(parts)}"


def call_of(chunk: Chunk, device: torch.device) -> Call:
    """The call with the keys of a sequence one after the other. What none uses is NaN."""
    generator = torch.Generator(device).manual_seed(7)
    longest = -(-max(chunk.keys) // chunk.page) * chunk.page

    def drawn(*rows: int, heads: int) -> Tensor:
        return torch.randn(*rows, heads, chunk.d, generator=generator, device=device)

    k, v = (drawn(len(chunk.keys), longest, heads=chunk.heads_k) for _ in "kv")
    for entry, keys in enumerate(chunk.keys):
        k[entry, keys:] = v[entry, keys:] = torch.nan
    one = torch.ones(1, device=device)
    return Call(
        drawn(sum(chunk.queries), heads=chunk.heads).to(E4M3),
        *(k.to(E4M3), v.to(E4M3)),
        cu_seqlens_q=cu_seqlens(chunk.queries).to(device),
        max_seqlen_q=max(chunk.queries),
        seqused_k=torch.tensor(chunk.keys, dtype=torch.int32, device=device),
        causal=True,
        q_descale=one,
        k_descale=one,
        v_descale=one,
    )


def in_pages(call: Call, page: int) -> Call:
    """The call with its keys in pages in any order."""
    batch, keys = call.k.shape[:2]
    count = batch * (keys // page)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(7)).to(call.k.device)
    table = torch.empty(count, dtype=torch.int32, device=call.k.device)
    table[order] = torch.arange(count, dtype=torch.int32, device=call.k.device)
    k, v = (t.view(torch.uint8).reshape(count, page, *t.shape[2:])[order] for t in call[1:3])
    return call._replace(k=k.view(E4M3), v=v.view(E4M3), block_table=table.reshape(batch, -1))


def exact_rows(chunk: Chunk, call: Call) -> tuple[Tensor, Tensor]:
    """Which rows are checked, the last ones of every sequence, and the first head of them in
    float64."""
    ends = torch.tensor(chunk.queries).cumsum(0).tolist()
    factors: dict[str, Any] = call.descales()
    rows, exact = [], []
    for entry, (end, queries, keys) in enumerate(zip(ends, chunk.queries, chunk.keys, strict=True)):
        checked = slice(end - min(queries, CHECKED_ROWS), end)
        rows.append(torch.arange(checked.start, checked.stop, device=call.q.device))
        q, k, v = (
            call.q[None, checked, :1],
            *(t[entry : entry + 1, :keys, :1] for t in call[1:3]),
        )
        exact.append(oracle(q, k, v, causal=True, **factors)[0, :, 0])
    return torch.cat(rows), torch.cat(exact)


if __name__ == "__main__":
    main()
