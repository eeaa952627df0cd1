# SPDX-License-Identifier: Apache-2.0
"""Random problems of real models, as training and prefill have them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import NamedTuple

from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.grid import Measured, Point

COUNT = 130  # of problems, unless told otherwise
SHORTEST, LONGEST = 128, 16384  # keys
MOST_TOKENS = 16384  # of a batch
SHORTEST_DOCUMENT = 32
PLAIN_LENGTHS = 0.5  # the share of lengths that are powers of two
WINDOWED_LAYERS = 0.5  # of models that have some


class Model(NamedTuple):
    """The attention of a model: its heads, its head dimension and its mask."""

    heads: int
    heads_k: int
    d_head: int
    causal: bool = True
    window: int = 0  # of some of its layers


MODELS = {
    "Llama 3 8B, Mistral": Model(32, 8, 128),
    "Llama 3 70B, Qwen 2.5 72B": Model(64, 8, 128),
    "Llama 2 7B": Model(32, 32, 128),
    "Qwen 2.5 0.5B": Model(14, 2, 64),
    "Qwen 2.5 1.5B": Model(12, 2, 128),
    "Qwen 2.5 7B": Model(28, 4, 128),
    "Qwen 2.5 14B, 32B": Model(40, 8, 128),
    "Qwen 3 0.6B": Model(16, 8, 128),
    "Qwen 3 235B": Model(64, 4, 128),
    "DBRX, Grok": Model(48, 8, 128),
    "Mistral 7B 0.1": Model(32, 8, 128, window=4096),
    "gpt-oss": Model(64, 8, 64, window=128),
    "Gemma 2B, PaliGemma": Model(8, 1, 256),
    "Gemma 7B": Model(16, 16, 256),
    "Gemma 2 2B": Model(8, 4, 256, window=4096),
    "Gemma 2 9B": Model(16, 8, 256, window=4096),
    "Gemma 3 1B": Model(4, 1, 256, window=512),
    "RecurrentGemma": Model(10, 1, 256, window=2048),
    "Phi 2": Model(32, 32, 80),
    "Phi 3 mini": Model(32, 32, 96, window=2047),
    "GPT-NeoX 20B": Model(64, 64, 96),
    "StableLM 2 12B": Model(32, 8, 160),
    "Nemotron 4 340B": Model(96, 8, 192),
    "GPT-2": Model(12, 12, 64),
    "GPT-2 XL": Model(25, 25, 64),
    "Falcon 7B": Model(71, 1, 64),
    "BERT, ViT-B": Model(12, 12, 64, causal=False),
    "ViT-L": Model(16, 16, 64, causal=False),
    "ViT-H": Model(16, 16, 80, causal=False),
    "ViT-g": Model(16, 16, 88, causal=False),
    "EVA-CLIP": Model(16, 16, 112, causal=False),
    "SigLIP, DiT-XL": Model(16, 16, 72, causal=False),
    "Whisper large": Model(20, 20, 64, causal=False),
    "Flux": Model(24, 24, 128, causal=False),
    "Stable Diffusion 3.5": Model(38, 38, 64, causal=False),
    "Stable Diffusion 1.5": Model(8, 8, 40, causal=False),
    "MiniLM": Model(12, 12, 32, causal=False),
}


@dataclass(frozen=True)
class RandomGrid:
    """Problems of `MODELS` with lengths from 128 to 16,384, evenly by their logarithm."""

    measured: Measured
    dtype: DType = DType.BF16

    def points(self, seed: int, count: int) -> list[Point]:
        """Draw problems. Those of a seed begin with the same ones, however many there are."""
        draw = random.Random(f"{self.measured.name} {seed}")
        return [_point(draw, self.measured) for _ in range(count)]


RANDOM_GRIDS = {
    "random": RandomGrid(Measured.FORWARD),
    "backward_random": RandomGrid(Measured.BACKWARD),
}


def _point(draw: random.Random, measured: Measured) -> Point:
    model = draw.choice(tuple(MODELS.values()))
    length, shape = _length(draw), (model.heads, model.heads_k)
    batch = draw.randint(1, max(1, MOST_TOKENS // length))
    kind = draw.choice(("dense", "dense", "chunk", "packed"))
    window = model.window if draw.random() < WINDOWED_LAYERS and model.window < length else 0
    if kind == "packed":
        lengths = _documents(draw, max(length, 4 * SHORTEST))
        return Point(
            *(model.d_head, model.causal, max(lengths), len(lengths), *shape), lengths=lengths
        )
    queries = 0
    if kind == "chunk" and model.causal and measured is Measured.FORWARD and not window:
        queries = min(_length(draw), length - 1)
    return Point(model.d_head, model.causal, length, batch, *shape, queries, window)


def _length(draw: random.Random) -> int:
    length = round(SHORTEST * math.exp(math.log(LONGEST / SHORTEST) * draw.random()))
    return 1 << length.bit_length() - 1 if draw.random() < PLAIN_LENGTHS else length


def _documents(draw: random.Random, tokens: int) -> tuple[int, ...]:
    """Lengths of documents that together have so many tokens."""
    mean = draw.choice((tokens // 2, tokens // 4, tokens // 16))
    lengths: list[int] = []
    while (left := tokens - sum(lengths)) > 0:
        length = max(SHORTEST_DOCUMENT, round(draw.expovariate(1 / mean)))
        lengths.append(min(length, left))
    return tuple(lengths)
