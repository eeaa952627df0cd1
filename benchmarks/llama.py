# SPDX-License-Identifier: Apache-2.0
"""A training step of a Llama of transformers with our attention, with SDPA and with the operators
of FlashAttention-3, as a results file:

PYTHONPATH=. python benchmarks/llama.py RESULTS [--fa3 flash_attn_3_C.so]

The model has 0.3 billion random weights in bfloat16, and a step 8,192 tokens: sequences of 2,048 or
one of 8,192. A step is a forward and a backward pass. Contenders take turns, and the losses of the
first step, before any time is taken, are compared with those of eager attention.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import AttentionMaskInterface

from flash_attention import DType
from flash_attention.compat.transformers import register
from flash_attention.files import write_record
from flash_attention_workbench.bench.environment import describe
from flash_attention_workbench.bench.gradient_case import GradientCase
from flash_attention_workbench.bench.grid import Measured, Point
from flash_attention_workbench.bench.peers.gradients import fa3_attention

TOKENS, LENGTHS = 8192, (2048, 8192)
HEADS, HEADS_K, D_HEAD = 16, 8, 64
STEPS = 12
LOSS_NOISE = 2e-3  # of a loss near log(32,000), between two orders of additions in bfloat16
EAGER, FA3 = "eager", "fa3_operators"


def model_of(device: torch.device) -> Any:
    """Return a Llama of 0.3 billion weights, the same ones in every run."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HEADS * D_HEAD,
        intermediate_size=3584,
        num_hidden_layers=20,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS_K,
        vocab_size=32000,
        max_position_embeddings=TOKENS,
        use_cache=False,
    )
    return LlamaForCausalLM(config).to(device, torch.bfloat16).train()


def register_fa3(library: Path | None, length: int, device: torch.device) -> None:
    """Make the operators of FA3 an attention implementation for causal sequences of one length."""
    point = Point(D_HEAD, True, length, TOKENS // length, HEADS, HEADS_K)
    attend = fa3_attention(library, GradientCase.of(point, DType.BF16, Measured.TRAINING, device))

    def forward(
        module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, None]:
        return attend(*(x.transpose(1, 2) for x in (query, key, value))), None

    AttentionInterface.register(FA3, forward)
    AttentionMaskInterface.register(FA3, lambda *_, **__: None)


def step(model: Any, ids: Tensor) -> Tensor:
    """Return the loss of a forward pass, after its backward pass."""
    model.zero_grad(set_to_none=True)
    loss: Tensor = model(ids, labels=ids).loss
    loss.backward()
    return loss.detach()


def measure(model: Any, ids: Tensor, names: list[str]) -> dict[str, Any]:
    """Return the loss of every contender, and the median time of a step in ms."""
    losses = {}
    for name in [*names, *([EAGER] if ids.shape[1] < TOKENS else [])]:
        model.set_attn_implementation(name)
        losses[name] = float(step(model, ids))
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(STEPS):
        for name in names:
            model.set_attn_implementation(name)
            step(model, ids)
            torch.cuda.synchronize()
            start = time.perf_counter()
            step(model, ids)
            torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - start))
    medians = {name: sorted(taken)[STEPS // 2] for name, taken in times.items()}
    spread = max(losses.values()) - min(losses.values())
    return {
        "length": ids.shape[1],
        "batch": ids.shape[0],
        "ms": {name: round(ms, 3) for name, ms in medians.items()},
        "losses": losses,
        "ok": spread <= LOSS_NOISE,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--fa3", type=Path, help="the library of FlashAttention-3")
    given = parser.parse_args()
    device = torch.device("cuda")
    model, ours, rows = model_of(device), register(), []
    for length in LENGTHS:
        names = [ours, "sdpa"]
        if given.fa3 is not None:
            register_fa3(given.fa3, length, device)
            names.append(FA3)
        ids = torch.randint(32000, (TOKENS // length, length), device=device)
        rows.append(measure(model, ids, names))
        ms = rows[-1]["ms"]
        beside = ", ".join(f"{name} {ms[name] / ms[ours]:.3f}" for name in names[1:])
        print(f"{length}: {ms[ours]:.1f} ms a step; times of others: {beside}; ok {rows[-1]['ok']}")
    record = {**describe(device), "command": "benchmarks/llama.py", "tokens": TOKENS, "rows": rows}
    write_record(given.results, record)


if __name__ == "__main__":
    main()
