# SPDX-License-Identifier: Apache-2.0
"""The calls of a serving engine: packed queries over a paged KV cache, with lengths that differ."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

SERVING = "serving"  # the name of the grid
SEED = 2029
SHORTEST, LONGEST = 0.6, 1.4  # lengths are drawn between these multiples of their mean
SMALL_PAGE, PAGE_SIZES, PAGE_8_BIT = 16, (16, 32, 64, 128, 256), 64
CHUNK = 2048


@dataclass(frozen=True)
class Layer:
    """The attention of a model, and how its cache is stored."""

    heads: int = 32
    heads_k: int = 8
    d: int = 128
    page: int = SMALL_PAGE
    of_8_bits: bool = False  # q, k and v are e4m3
    sinks: bool = False
    window: tuple[int, int] | None = None

    @property
    def words(self) -> str:
        """The layer in a few words."""
        kind = f"{self.heads}:{self.heads_k} h, d {self.d}, pages of {self.page}"
        window = "" if self.window is None else f", window {self.window}"
        return kind + ", 8 bits" * self.of_8_bits + ", sinks" * self.sinks + window


@dataclass(frozen=True)
class Step:
    """One call: the queries and the keys of each sequence. Queries are the last of their keys."""

    label: str
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    layer: Layer = Layer()

    @property
    def even_queries(self) -> int | None:
        """How many queries every sequence has, or None if they differ."""
        return self.queries[0] if len(set(self.queries)) == 1 else None

    @property
    def cells(self) -> int:
        """The number of scores of one head, masked or not."""
        return sum(q * k for q, k in zip(self.queries, self.keys, strict=True))

    @property
    def kv_bytes(self) -> int:
        """K and V, each read once."""
        size = 1 if self.layer.of_8_bits else 2
        return 2 * sum(self.keys) * self.layer.heads_k * self.layer.d * size


LLAMA = Layer()
GPT_OSS = Layer(heads=64, d=64, sinks=True)
WIDE = Layer(heads=16, d=256)
QUANTISED = Layer(page=PAGE_8_BIT, of_8_bits=True)


def serving_steps(seed: int = SEED) -> tuple[Step, ...]:
    """The steps of the grid. The same seed draws the same lengths."""
    draw = random.Random(seed)

    def about(mean: int, count: int) -> tuple[int, ...]:
        return tuple(round(mean * draw.uniform(SHORTEST, LONGEST)) for _ in range(count))

    def decode(count: int, mean: int, layer: Layer = LLAMA, queries: int = 1) -> Step:
        kind = "decode" if queries == 1 else f"speculative, {queries} queries"
        return Step(f"{kind} {count} x {mean:,}", (queries,) * count, about(mean, count), layer)

    def mixed(decodes: int) -> Step:
        return Step(
            f"{decodes} decodes + chunk of {CHUNK:,}",
            (CHUNK, *(1,) * decodes),
            (3 * CHUNK, *about(CHUNK, decodes)),
        )

    def chunk(keys: int, layer: Layer = LLAMA) -> Step:
        return Step(f"chunk of {CHUNK:,} at {keys:,}", (CHUNK,), (keys,), layer)

    prompts = about(1500, 4)
    return (
        *(decode(1, mean) for mean in (512, 2048, 8192, 60_000)),
        *(decode(32, mean) for mean in (512, 2048, 8192)),
        decode(256, 2048),
        decode(32, 2048, queries=4),
        *(mixed(decodes) for decodes in (8, 64, 200)),
        Step("prefill 4 x 1,500", prompts, prompts),
        chunk(30_000),
        *(chunk(8192, replace(LLAMA, page=page)) for page in PAGE_SIZES),
        *(decode(count, mean, QUANTISED) for count, mean in ((1, 8192), (32, 2048), (128, 2048))),
        decode(8, 32_000, QUANTISED),
        chunk(8192, QUANTISED),
        *(decode(count, 3000, GPT_OSS) for count in (1, 32, 128)),
        decode(32, 2048, WIDE),
        chunk(3 * CHUNK, WIDE),
    )


def drawn_decode(draw: random.Random, most: int = 200) -> Step:
    """A decode step of a random number of sequences, for the time that a call takes on the host."""
    batch = draw.randint(1, most)
    keys = tuple(draw.randint(50, 3000) for _ in range(batch))
    return Step("decode", (1,) * batch, keys)
