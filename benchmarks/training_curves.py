# SPDX-License-Identifier: Apache-2.0
"""A transformer with random weights, trained with our attention and with others, as a results file:

PYTHONPATH=. python benchmarks/training_curves.py RESULTS [--steps 200] [--repeats 3]

Every run has the same weights at the start and the same text. Weights are float32, and autocast
computes in bfloat16. The runs of one contender differ where it adds in another order.
"""

from __future__ import annotations

import argparse
import random
import statistics
import string
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from flash_attention import attention
from flash_attention.files import write_record
from flash_attention_workbench.bench.environment import describe, describe_host

OURS = "ours"
WINDOW = 20  # steps whose losses are averaged before runs are compared
BYTES, WORDS = 256, 500

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Causal attention of tensors (batch, seq, heads, d)."""
Curves = Mapping[str, Sequence[Sequence[float]]]
"""The losses of each run of each contender."""


@dataclass(frozen=True)
class Settings:
    """The model and its training."""

    layers: int = 4
    d_model: int = 512
    heads: int = 8
    seq: int = 512
    batch: int = 16
    steps: int = 200
    learning_rate: float = 1e-3
    seed: int = 0


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and beside the residual stream."""

    def __init__(self, settings: Settings, attend: Attention) -> None:
        super().__init__()
        width = settings.d_model
        self.heads, self.attend = settings.heads, attend
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        x = x + self.out(self.attend(q, k, v).flatten(-2))
        hidden = nn.functional.gelu(self.up(self.norms[1](x)))
        result: Tensor = x + self.down(hidden)
        return result


class Transformer(nn.Module):
    """Predicts the next byte."""

    def __init__(self, settings: Settings, attend: Attention) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, settings.d_model)
        self.places = nn.Embedding(settings.seq, settings.d_model)
        self.blocks = nn.Sequential(*(Block(settings, attend) for _ in range(settings.layers)))
        self.norm = nn.LayerNorm(settings.d_model)
        self.head = nn.Linear(settings.d_model, BYTES)

    def forward(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[-1], device=text.device)
        logits: Tensor = self.head(self.norm(self.blocks(self.bytes(text) + self.places(places))))
        return logits


def contenders(device: str) -> dict[str, Attention]:
    """Our attention and others, by name."""
    if device == "cpu":
        return {OURS: partial(attention, causal=True), "sdpa": _sdpa}
    return {
        OURS: partial(attention, causal=True),
        "cudnn": partial(_sdpa, backend=SDPBackend.CUDNN_ATTENTION),
        "fa2": partial(_sdpa, backend=SDPBackend.FLASH_ATTENTION),
    }


def _sdpa(q: Tensor, k: Tensor, v: Tensor, backend: SDPBackend = SDPBackend.MATH) -> Tensor:
    queries, keys, values = (t.transpose(1, 2) for t in (q, k, v))
    with sdpa_kernel(backend):
        out = scaled_dot_product_attention(queries, keys, values, is_causal=True)
    return out.transpose(1, 2)


def synthetic_text(settings: Settings) -> Tensor:
    """Bytes of words that occur by Zipf's law: (steps, batch, seq + 1)."""
    drawn = random.Random(settings.seed)
    lengths = [drawn.randint(2, 9) for _ in range(WORDS)]
    words = ["".join(drawn.choices(string.ascii_lowercase, k=length)) for length in lengths]
    weights = [1 / (rank + 1) for rank in range(WORDS)]
    count = settings.steps * settings.batch * (settings.seq + 1)
    text = " ".join(drawn.choices(words, weights, k=count // 3 + 1)).encode()
    numbers = torch.frombuffer(bytearray(text[:count]), dtype=torch.uint8)
    return numbers.view(settings.steps, settings.batch, settings.seq + 1).long()


def train(settings: Settings, attend: Attention, text: Tensor) -> list[float]:
    """The loss of every step."""
    torch.manual_seed(settings.seed)
    model = Transformer(settings, attend).to(text.device)
    optimizer = torch.optim.AdamW(
        model.parameters(), settings.learning_rate, fused=text.is_cuda or None
    )
    losses = []
    for step in text:
        with torch.autocast(text.device.type, torch.bfloat16):
            logits = model(step[:, :-1])
            loss = cross_entropy(logits.flatten(0, 1).float(), step[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in torch.stack(losses)]


def smooth(losses: Sequence[float]) -> list[float]:
    """Means of consecutive steps, WINDOW at a time."""
    return [
        statistics.mean(losses[first : first + WINDOW]) for first in range(0, len(losses), WINDOW)
    ]


@dataclass(frozen=True)
class Comparison:
    """How far runs are apart, in means over WINDOW steps."""

    run_to_run: float  # largest difference between runs of one contender
    beyond: float  # how far ours lies outside of the others' runs, at most
    final: Mapping[str, float]  # mean loss at the end

    @property
    def within(self) -> bool:
        """Whether ours leaves the range of the others by no more than runs of one differ."""
        return self.beyond <= self.run_to_run


def compare(curves: Curves) -> Comparison:
    """Compare the runs of ours with those of the others."""
    means = {name: [smooth(run) for run in runs] for name, runs in curves.items()}
    spread = [max(at) - min(at) for runs in means.values() for at in zip(*runs, strict=True)]
    others = [run for name, runs in means.items() if name != OURS for run in runs]
    beyond = 0.0
    for run in means[OURS]:
        for mine, at in zip(run, zip(*others, strict=True), strict=True):
            beyond = max(beyond, min(at) - mine, mine - max(at))
    final = {name: statistics.mean(run[-1] for run in runs) for name, runs in means.items()}
    return Comparison(max(spread), beyond, final)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("results", type=Path, help="JSON file to write")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contender")
    for name in ("layers", "d_model", "heads", "seq", "batch", "steps"):
        default = getattr(Settings, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    given = vars(parse(arguments))
    results, repeats = given.pop("results"), given.pop("repeats")
    settings = Settings(**given)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = time.perf_counter()
    text = synthetic_text(settings).to(device)
    losses: dict[str, list[list[float]]] = {}
    for _ in range(repeats):
        for name, attend in contenders(device).items():
            losses.setdefault(name, []).append(train(settings, attend, text))
            print(f"{name}: {losses[name][-1][0]:.4f} to {losses[name][-1][-1]:.4f}")
    found = compare(losses)
    where: dict[str, Any] = describe() if device == "cuda" else {"device": device}
    record = {
        **describe_host(),
        **where,
        "command": " ".join(("benchmarks/training_curves.py", *arguments)),
        "seconds": round(time.perf_counter() - start, 1),
        "settings": asdict(settings),
        "comparison": asdict(found) | {"within": found.within},
        "losses": losses,
    }
    write_record(results, record)
    said = "within" if found.within else "NOT within"
    print(
        f"{said} the run-to-run spread: ours leaves the others' runs by {found.beyond:.5f}, runs of"
        f" one contender differ by up to {found.run_to_run:.5f}; {record['seconds']} s"
    )
    return int(not found.within)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
