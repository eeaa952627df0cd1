# SPDX-License-Identifier: Apache-2.0
"""What dropout and the largest scores cost, beside the same call without them:

python benchmarks/options.py [--out results/h200_options.json] [--repeats 15]

bfloat16. Dropout is also timed in torch's SDPA with its FlashAttention-2 backend. The results of
the last sequence and head are compared with the same formula in float32, with the same mask.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import product
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from flash_attention import DType, attention
from flash_attention.call.dropout import STEPS, draw_rng_state, kept_steps
from flash_attention.files import write_record
from flash_attention.reference.dropout import kept_weights
from flash_attention.reference.judge import generate_qkv
from flash_attention_workbench.bench.environment import describe
from flash_attention_workbench.bench.timing import (
    AUTOGRAD_SPINS,
    SPIN_CYCLES,
    Contender,
    time_in_turn,
)

WIDTH = 2048  # heads x d
SHAPES = ((4, 4096), (1, 16384))  # batch and rows
DROPOUT_P = 0.1
PLAIN, DROPOUT, LARGEST, FA2 = "plain", "dropout", "largest scores", "fa2 dropout"
FORWARD, BACKWARD = "forward", "backward"
MOST_ERROR = 1e-2  # relative RMS
MOST_SCORE_ERROR = 1e-3  # of the largest score, relative


class Point:
    """The tensors of one call, and what they should give."""

    def __init__(
        self, d: int, batch: int, rows: int, causal: bool, device: torch.device, width: int = WIDTH
    ) -> None:
        self.d, self.batch, self.rows, self.causal = d, batch, rows, causal
        self.heads = width // d
        drawn = generate_qkv(batch, rows, self.heads, d, DType.BF16, device)
        self.qkv = tuple(tensor.requires_grad_() for tensor in drawn)
        self.do = torch.randn_like(self.qkv[0])
        self.state = draw_rng_state(device)

    def __str__(self) -> str:
        mask = "causal" if self.causal else "full"
        return f"d {self.d}, {mask}, {self.batch} x {self.rows}"

    def forward(self, **options: Any) -> Callable[[], Any]:
        """A call without gradients."""
        run = partial(attention, *self.qkv, causal=self.causal, **options)
        return torch.no_grad()(run)

    def backward(self, **options: Any) -> Callable[[], tuple[Tensor, ...]]:
        """The gradients of a call that was made."""
        return self._gradients_of(attention(*self.qkv, causal=self.causal, **options))

    def of_fa2(self, backward: bool) -> Callable[[], Any]:
        q, k, v = (tensor.transpose(1, 2) for tensor in self.qkv)

        def attend() -> Tensor:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                out = scaled_dot_product_attention(q, k, v, None, DROPOUT_P, self.causal)
            return out.transpose(1, 2)

        return self._gradients_of(attend()) if backward else torch.no_grad()(attend)

    def _gradients_of(self, out: Tensor) -> Callable[[], tuple[Tensor, ...]]:
        return partial(torch.autograd.grad, out, self.qkv, self.do, retain_graph=True)

    @property
    def dropout(self) -> dict[str, Any]:
        return {"dropout_p": DROPOUT_P, "rng_state": self.state}

    def last(self, tensor: Tensor) -> Tensor:
        """What the last head of the last sequence has."""
        return tensor[-1, :, -1].detach().float()

    def expected(self, dropout: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The output of the last head of the last sequence, and its gradients."""
        q, k, v = (self.last(tensor).requires_grad_() for tensor in self.qkv)
        weights = self._scores(q, k).softmax(-1)
        if dropout:
            number, span = self.batch * self.heads - 1, range(self.rows)
            kept = kept_weights(self.state, DROPOUT_P, range(number, number + 1), span, span)[0]
            weights = weights * kept * (STEPS / kept_steps(DROPOUT_P))
        out = weights @ v
        return out.detach(), torch.autograd.grad(out, (q, k, v), self.last(self.do))

    def largest(self) -> float:
        """The largest score of the last head."""
        q, k, _ = (tensor[:, :, -1].detach().float() for tensor in self.qkv)
        return max(float(self._scores(*one).max()) for one in zip(q, k, strict=True))

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.T / sqrt(self.d)
        if not self.causal:
            return scores
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -torch.inf)


def measure(point: Point, repeats: int) -> dict[str, Any]:
    """Time both passes of a point, and check what was computed."""
    device = point.do.device
    without, dropped = point.expected(dropout=False), point.expected(dropout=True)
    errors: dict[str, float] = {}

    def note(what: str, results: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
        apart = (
            float((point.last(one) - right).norm() / right.norm())
            for one, right in zip(results, expected, strict=True)
        )
        errors[what] = max(apart)
        if not errors[what] <= MOST_ERROR:
            raise SystemExit(f"{point}, {what}: relative RMS error {errors[what]:.2e}")

    def check_forward(name: str, result: Any) -> None:
        if name == LARGEST:
            apart = abs(float(result[1][-1]) / point.largest() - 1)
            if not apart <= MOST_SCORE_ERROR:
                raise SystemExit(f"{point}: the largest score is off by {apart:.2e}")
            result = result[0]
        if name != FA2:  # whose masks are others
            expected = dropped if name == DROPOUT else without
            note(f"{FORWARD}, {name}", (result,), expected[:1])

    def check_backward(name: str, result: tuple[Tensor, ...]) -> None:
        if name != FA2:
            note(f"{BACKWARD}, {name}", result, (dropped if name == DROPOUT else without)[1])

    forward = [
        Contender(PLAIN, point.forward()),
        Contender(DROPOUT, point.forward(**point.dropout)),
        Contender(LARGEST, point.forward(return_max=True)),
        Contender(FA2, point.of_fa2(backward=False)),
    ]
    backward = [
        Contender(PLAIN, point.backward()),
        Contender(DROPOUT, point.backward(**point.dropout)),
        Contender(FA2, point.of_fa2(backward=True)),
    ]
    timed = partial(time_in_turn, device=device, repeats=repeats)
    timings = {
        FORWARD: timed(forward, check=check_forward),
        BACKWARD: timed(backward, check=check_backward, spin_cycles=AUTOGRAD_SPINS * SPIN_CYCLES),
    }
    return {
        "d": point.d,
        "causal": point.causal,
        "batch": point.batch,
        "seq": point.rows,
        "heads": point.heads,
        "options_ms": {
            pass_: {name: timing.median_ms for name, timing in of_pass.items()}
            for pass_, of_pass in timings.items()
        },
        "relative_rms": errors,
    }


def told(point: Point, row: dict[str, Any]) -> str:
    parts = [
        f"{pass_} " + ", ".join(f"{name} {ms / times[PLAIN]:.3f}" for name, ms in times.items())
        for pass_, times in row["options_ms"].items()
    ]
    return f"{point}: {'; '.join(parts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    device, rows = torch.device("cuda", torch.cuda.current_device()), []
    for d, causal, (batch, length) in product((64, 128), (False, True), SHAPES):
        point = Point(d, batch, length, causal, device)
        rows.append(measure(point, given.repeats))
        print(told(point, rows[-1]), flush=True)
    if given.out:
        command = f"python benchmarks/options.py --out {given.out}"
        write_record(given.out, describe() | {"command": command, "rows": rows})


if __name__ == "__main__":
    main()
