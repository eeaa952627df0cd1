# SPDX-License-Identifier: Apache-2.0
"""KV caches on a GPU: a prefix that is read once, pages, updates of a cache, caches of 8 bits.

Run on a machine with a GPU: PYTHONPATH=. python benchmarks/caches.py RESULTS [--repeats 60]

Every contender is a CUDA graph, is taken in turn with the others of its point, and finds nothing in
L2. Outputs are compared before anything is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flash_attention import attention, merge
from flash_attention.call.cache_call import CacheCall
from flash_attention.call.results import DESCALED_KEYS, E4M3
from flash_attention.files import write_record
from flash_attention.launch.cache_update import update_cache
from flash_attention.reference.cache import update_with_torch
from flash_attention_workbench.bench.environment import describe
from flash_attention_workbench.bench.timing import Contender, time_in_turn

HEADS, HEADS_K, D, PAGE = 32, 8, 128, 64
DEVICE = torch.device("cuda")
MOST_ERROR = 2e-2
Functions = Mapping[str, Callable[[], Tensor]]


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device=DEVICE)


def numbers(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def shared_prefix(batch: int, prefix: int, own: int) -> Functions:
    """One query of each sequence sees the prefix and `own` keys of its own."""
    q, k, v = (
        random(batch, 1, HEADS, D),
        random(batch, own, HEADS_K, D),
        random(batch, own, HEADS_K, D),
    )
    k_prefix, v_prefix = random(prefix, HEADS_K, D), random(prefix, HEADS_K, D)
    whole = [
        torch.cat((shared.expand(batch, -1, -1, -1), each), 1).contiguous()
        for shared, each in ((k_prefix[None], k), (v_prefix[None], v))
    ]
    pages = [
        torch.cat((shared.unflatten(0, (-1, PAGE)), each.flatten(0, 1).unflatten(0, (-1, PAGE))))
        for shared, each in ((k_prefix, k), (v_prefix, v))
    ]
    first, each = prefix // PAGE, own // PAGE
    mine = first + torch.arange(batch * each, device=DEVICE).view(batch, each)
    table = torch.cat((torch.arange(first, device=DEVICE).expand(batch, -1), mine), 1).int()
    used = numbers([prefix + own] * batch)

    def merged() -> Tensor:
        rows = q.flatten(0, 1)[None]
        o1, lse1 = attention(rows, k_prefix[None], v_prefix[None], return_lse=True)
        o2, lse2 = attention(q, k, v, return_lse=True)
        lse1 = lse1.view(HEADS, batch, 1).transpose(0, 1)
        return merge(o1.view(batch, 1, HEADS, D), lse1, o2, lse2)[0]

    return {
        "read once and merged": merged,
        "repeated keys": lambda: attention(q, whole[0], whole[1]),
        "shared pages": lambda: attention(q, *pages, block_table=table, seqused_k=used),
    }


def pages_of(batch: int, keys: int) -> Functions:
    """One query of each sequence, with keys in pages of several sizes in a random order."""
    q, k, v = (
        random(batch, 1, HEADS, D),
        random(batch, keys, HEADS_K, D),
        random(batch, keys, HEADS_K, D),
    )
    used = numbers([keys] * batch)
    found: dict[str, Callable[[], Tensor]] = {"dense": lambda: attention(q, k, v, seqused_k=used)}
    for size in (1, 2, 4, 8, 16, 64, 256):
        table = torch.randperm(batch * keys // size, device=DEVICE).view(batch, -1)
        pages = [torch.empty_like(t).view(-1, size, HEADS_K, D) for t in (k, v)]
        for page, t in zip(pages, (k, v), strict=True):
            page[table.flatten()] = t.view(-1, size, HEADS_K, D)
        given: dict[str, Any] = {"block_table": table.int(), "seqused_k": used}
        found[f"pages of {size}"] = paged(q, pages, given)
    return found


def paged(q: Tensor, pages: list[Tensor], given: dict[str, Any]) -> Callable[[], Tensor]:
    return lambda: attention(q, pages[0], pages[1], **given)


def of_8_bits(batch: int, keys: int, queries: int = 1) -> Functions:
    """Queries of each sequence see the same numbers in 16 bits and in 8, dense and in pages."""
    q, k, v = (
        random(batch, rows, heads, D).to(E4M3)
        for rows, heads in ((queries, HEADS), (keys, HEADS_K), (keys, HEADS_K))
    )
    wide = [t.bfloat16() for t in (q, k, v)]
    table = torch.arange(batch * keys // PAGE, device=DEVICE, dtype=torch.int32).view(batch, -1)
    given: dict[str, Any] = {"block_table": table, "seqused_k": numbers([keys] * batch)}
    one = torch.ones(1, device=DEVICE)
    factors: dict[str, Any] = {"k_descale": one, "v_descale": one}
    in_blocks = torch.ones(batch, HEADS_K, -(-keys // DESCALED_KEYS), device=DEVICE)
    k_pages, v_pages = (t.view(-1, PAGE, HEADS_K, D) for t in (k, v))
    wide_pages = [t.view(-1, PAGE, HEADS_K, D) for t in wide[1:]]
    found: dict[str, Callable[[], Tensor]] = {
        "16 bits": lambda: attention(*wide, causal=True),
        "8 bits": lambda: attention(wide[0], k, v, causal=True, **factors),
        "8 bits, factors for blocks": lambda: attention(
            wide[0], k, v, causal=True, k_descale=in_blocks, v_descale=in_blocks
        ),
        "16 bits in pages": lambda: attention(wide[0], *wide_pages, causal=True, **given),
        "8 bits in pages": lambda: attention(
            wide[0], k_pages, v_pages, causal=True, **given, **factors
        ),
    }
    if queries == 1:  # more have products of 8 bits, which benchmarks/fp8.py times
        found["8 bits, q too"] = partial(attention, q, k, v, q_descale=one, **factors)
    return found


def updates(batch: int, new: int) -> Functions:
    """New keys of each sequence go into pages."""
    columns = 4096 // PAGE
    caches = [random(batch * columns, PAGE, HEADS_K, D) for _ in "kv"]
    table = torch.randperm(batch * columns, device=DEVICE).view(batch, -1).int()
    call = CacheCall(
        *(random(batch, new, HEADS, D), caches[0], caches[1], numbers([1000] * batch), batch),
        *(random(batch, new, HEADS_K, D), random(batch, new, HEADS_K, D), table),
    )

    def stored(update: Callable[[CacheCall], object]) -> Callable[[], Tensor]:
        def run() -> Tensor:
            update(call)
            return caches[0]

        return run

    return {"by a kernel": stored(update_cache), "by torch": stored(update_with_torch)}


def points() -> Iterator[tuple[str, Functions]]:
    for batch in (8, 64):
        for prefix in (1024, 8192):
            yield (
                f"prefix of {prefix}, batch {batch}, 256 own keys",
                shared_prefix(batch, prefix, 256),
            )
    for batch, keys in ((1, 8192), (16, 8192), (64, 2048)):
        yield f"batch {batch}, {keys} keys", pages_of(batch, keys)
    for batch, keys in ((1, 8192), (4, 512), (16, 8192), (64, 2048), (8, 65536)):
        yield f"decoding, batch {batch}, {keys} keys", of_8_bits(batch, keys)
    yield "prefill, batch 4, 4096 keys", of_8_bits(4, 4096, 4096)
    for batch, new in ((1, 1), (64, 1), (8, 512)):
        yield f"batch {batch}, {new} new keys", updates(batch, new)


def captured(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The function as a CUDA graph that returns the same tensor every time."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--repeats", type=int, default=60)
    asked = parser.parse_args()
    rows = []
    for name, functions in points():
        wanted = next(iter(functions.values()))().clone()

        def check(_: str, found: Tensor, wanted: Tensor = wanted) -> None:
            torch.testing.assert_close(found, wanted, rtol=MOST_ERROR, atol=MOST_ERROR)

        contenders = [Contender(each, captured(run)) for each, run in functions.items()]
        timings = time_in_turn(contenders, device=DEVICE, repeats=asked.repeats, check=check)
        for each, timing in timings.items():
            print(f"{name}: {each} {1e3 * timing.median_ms:.1f} us")
            rows.append({"point": name, "contender": each, "median_us": 1e3 * timing.median_ms})
    write_record(asked.results, {**describe(), "repeats": asked.repeats, "rows": rows})


if __name__ == "__main__":
    with torch.no_grad():
        main()
