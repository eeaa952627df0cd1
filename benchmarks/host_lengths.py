# SPDX-License-Identifier: Apache-2.0
"""What a call costs on the host if its lengths are new, and if they were seen before: steps of a
serving engine, and of training on packed sequences; beside FlashAttention-3, if
$FLASH_ATTENTION_FA3 names its library.

Run on a machine with a GPU: python benchmarks/host_lengths.py [--json FILE]
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.call.call import Call
from flash_attention.errors import UnsupportedError
from flash_attention.files import write_record
from flash_attention.launch.plans import plan_for
from flash_attention_workbench.bench.environment import describe
from flash_attention_workbench.bench.peers.fa3 import FA3, fa3_path, load_fa3

HEADS, HEADS_K, D_HEAD, PAGE, PAGES = 32, 8, 128, 16, 16384
WARM_UP = 20  # steps, which compile kernels
IN_A_ROW = 100  # calls with one set of lengths, fewer than the launch queue holds
Run = Callable[[], object]
Runs = dict[str, Run]  # by who computes


class Steps:
    """Makes steps of random lengths."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        shape = (PAGES, PAGE, HEADS_K, D_HEAD)
        self._k, self._v = (torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in "kv")
        try:
            self._fa3 = load_fa3(fa3_path(None))
        except UnsupportedError as missing:
            print(f"{FA3}: {missing}", file=sys.stderr)
            self._fa3 = None

    def decode(self) -> Runs:
        """One query of every sequence."""
        return self._serving([1] * self._random.randint(1, 200))

    def mixed(self) -> Runs:
        """One query of most sequences, and a chunk of another."""
        chunk = self._random.randint(65, 2048)
        return self._serving([1] * self._random.randint(1, 200) + [chunk])

    def _serving(self, queries: list[int]) -> Runs:
        used = [count + self._random.randint(50, 3000) for count in queries]
        call = self._call(queries, used)
        q, k, v, lengths = *call[:3], call.keywords()
        runs: Runs = {"attention": lambda: attention(q, k, v, **lengths)}
        if self._fa3 is not None:
            given = (call.cu_seqlens_q, None, call.seqused_k, (max(queries), max(used)))
            peer = _fa3_arguments(q, k, v, *given, call.block_table)
            runs[FA3] = lambda: self._fa3.fwd(*peer)
        return runs

    def _call(self, queries: list[int], used: list[int]) -> Call:
        width = -(-max(used) // PAGE)
        return Call(
            *(_rows(sum(queries), HEADS), self._k, self._v),
            causal=True,
            cu_seqlens_q=_starts(queries),
            max_seqlen_q=max(queries),
            seqused_k=torch.tensor(used, dtype=torch.int32, device="cuda"),
            block_table=torch.zeros(len(queries), width, dtype=torch.int32, device="cuda"),
        )

    def parts(self) -> Runs:
        """What every call needs from torch and the driver: an allocation, and a launch."""
        call = self._call([1] * 32, [1000] * 32)
        plan = plan_for(call)
        arguments, out = plan.prepare(call)
        return {
            "torch.empty_like": lambda: torch.empty_like(call.q),
            "launch": lambda: plan.launch(call, arguments, out),
        }

    def packed(self, *, with_gradients: bool = False) -> Runs:
        """A batch of packed sequences, as training has them."""
        counts = [self._random.randint(10, 500) for _ in range(self._random.randint(2, 12))]
        heads = (HEADS, HEADS_K, HEADS_K)
        q, k, v = (_rows(sum(counts), n).requires_grad_(with_gradients) for n in heads)
        do, starts, longest = torch.zeros_like(q), _starts(counts), max(counts)
        lengths: dict[str, Any] = {
            **{"cu_seqlens_q": starts, "max_seqlen_q": longest},
            **{"cu_seqlens_k": starts, "max_seqlen_k": longest},
        }

        def step() -> None:
            out = attention(q, k, v, causal=True, **lengths)
            if with_gradients:
                torch.autograd.grad(out, (q, k, v), do)

        runs: Runs = {"attention": step}
        if self._fa3 is not None and not with_gradients:
            peer = _fa3_arguments(q, k, v, starts, starts, None, (longest, longest), None)
            runs[FA3] = lambda: self._fa3.fwd(*peer)
        return runs


def _rows(count: int, heads: int) -> Tensor:
    return torch.zeros(count, heads, D_HEAD, dtype=torch.bfloat16, device="cuda")


def _starts(counts: list[int]) -> Tensor:
    return torch.tensor([0, *counts]).cumsum(0).int().cuda()


def _fa3_arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts_q: Tensor | None,
    starts_k: Tensor | None,
    used: Tensor | None,
    longest: tuple[int, int],
    table: Tensor | None,
) -> list[Any]:
    """The arguments of FA3's forward operator, in its order."""
    return [
        *(q, k, v, None, None, None, None),  # k_new, v_new, q_v, out
        *(starts_q, starts_k, None, None, used, *longest, table),  # of k_new; seqused_q
        *(None,) * 8,  # the batch of pages and their padding, rotary, descales
        *(D_HEAD**-0.5, True, -1, -1, 0, 0.0, False, None, 0, None, 0),
    ]


def microseconds(make: Callable[[], Runs], steps: int) -> dict[str, float]:
    """Medians of the host times of calls: of one with new lengths and of the next with the same,
    each while the GPU is idle, and of calls with the same lengths in a row."""
    times: dict[str, list[float]] = {}

    def note(name: str, run: Run, count: int = 1) -> None:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            run()
        times.setdefault(name, []).append((time.perf_counter() - start) / count * 1e6)

    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            times.clear()
        for name, run in make().items():
            note(f"{name}, new", run)
            note(f"{name}, known", run)
            if step % 10 == 0:
                note(f"{name}, known, in a row", run, IN_A_ROW)
    torch.cuda.synchronize()
    return {name: statistics.median(taken) for name, taken in times.items()}


def measure(steps: int) -> dict[str, dict[str, float]]:
    """Microseconds by the kind of step, and by who computes and what is known."""
    made = Steps(seed=0)
    with torch.no_grad():
        found = {
            "serving, decode": microseconds(made.decode, steps),
            "serving, decode and a chunk": microseconds(made.mixed, steps),
            "packed, forward": microseconds(made.packed, steps),
        }
    training = "packed, forward and backward"
    with torch.autograd.set_multithreading_enabled(False):  # without waking autograd's thread
        found[training] = microseconds(lambda: made.packed(with_gradients=True), steps)
    parts = made.parts()
    return found | {"parts of a call": microseconds(lambda: parts, steps)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    parser.add_argument("--steps", type=int, default=200, help="steps of each kind")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("host_lengths.py needs an NVIDIA GPU; torch sees none")
    found = measure(options.steps)
    gpu = torch.cuda.get_device_name()
    print(f"{gpu}, torch {torch.__version__}, Python {platform.python_version()}")
    print(f"host time of a call, {HEADS}:{HEADS_K} heads of {D_HEAD}, pages of {PAGE}")
    for kind, rows in found.items():
        print(kind)
        for name, value in rows.items():
            print(f"  {name:<40}{value:10.1f} us")
    if options.json:
        write_record(options.json, {**describe(), "lengths_us": found})


if __name__ == "__main__":
    main()
