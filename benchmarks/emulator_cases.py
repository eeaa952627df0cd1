# SPDX-License-Identifier: Apache-2.0
"""Launches that the speed of the emulator is measured with, and a process that runs them.

The process reads lines "case schedule" and answers each with the CPU seconds of one run and with
digests of what it stored, found and counted.
"""

from __future__ import annotations

import copy
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from flash_attention import DType
from flash_attention.ladder import get_ladder
from flash_attention.launch.emulate import emulate
from flash_attention.reference.judge import generate_qkv
from ptx_emulator import Empty, UserKernel
from tests.user_kernel.corpus_kernels import corpus_kernel, floats
from tests.user_kernel.corpus_launches import FILES, launches, more_launches

PRODUCTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "product, a register tile a thread": (
        "register_tiles",
        {"grid": 1, "block": 256},
        """
        __global__ void register_tiles(float* c, const float* a, const float* b, int n) {
          __shared__ float as[8][128], bs[8][128];
          int t = threadIdx.x, row = t / 16 * 8, col = t % 16 * 8;
          float sum[8][8] = {};
          for (int k = 0; k < n; k += 8) {
            for (int i = t; i < 1024; i += 256) {
              as[i % 8][i / 8] = a[i / 8 * n + k + i % 8];
              bs[i / 128][i % 128] = b[(k + i / 128) * n + i % 128];
            }
            __syncthreads();
            for (int d = 0; d < 8; ++d)
              for (int i = 0; i < 8; ++i)
                for (int j = 0; j < 8; ++j) sum[i][j] += as[d][row + i] * bs[d][col + j];
            __syncthreads();
          }
          for (int i = 0; i < 8; ++i)
            for (int j = 0; j < 8; ++j) c[(row + i) * n + col + j] = sum[i][j];
        }""",
    ),
    "product, an element a thread": (
        "elements",
        {"grid": (4, 4), "block": (32, 32)},
        """
        __global__ void elements(float* c, const float* a, const float* b, int n) {
          __shared__ float as[32][32], bs[32][32];
          int x = threadIdx.x, y = threadIdx.y;
          int row = blockIdx.y * 32 + y, col = blockIdx.x * 32 + x;
          float sum = 0;
          for (int k = 0; k < n; k += 32) {
            as[y][x] = a[row * n + k + x], bs[y][x] = b[(k + y) * n + col];
            __syncthreads();
            for (int d = 0; d < 32; ++d) sum += as[y][d] * bs[d][x];
            __syncthreads();
          }
          c[row * n + col] = sum;
        }""",
    ),
}


class Outcome(NamedTuple):
    """What a run left behind."""

    arrays: Iterable[Any]
    findings: Iterable[Any]
    counters: Any


Run = Callable[[], Outcome]
Case = Callable[[str], Run]  # makes a run under a schedule ready
SHORTEST = 0.02  # seconds that are measured; asking for the time costs a part of a millisecond


def cases() -> Iterator[tuple[str, Case]]:
    """All of them, by name."""
    known = {**launches(), **more_launches()}
    for entry, file in FILES.items():
        kernel = corpus_kernel(file, entry, "sm_90a" if file == "hopper.cu" else "sm_80")
        yield entry, _launch(kernel, *known[entry])
    a, b = floats(128, 128), floats(128, 128, seed=1)
    for name, (entry, grid, text) in PRODUCTS.items():
        kernel = UserKernel.of_source(text, entry)
        yield name, _launch(kernel, (Empty((128, 128)), a, b, 128), grid)
    for number, rung in enumerate(get_ladder(DType.FP16, 128, 2), 1):
        yield f"rung {number}", _rung(rung.config)


def _launch(kernel: UserKernel, arguments: Any, launch: dict[str, Any]) -> Case:
    def prepared(schedule: str) -> Run:
        given = copy.deepcopy(arguments)

        def run() -> Outcome:
            result = kernel.run(*given, **launch, schedule=schedule, seed=1)
            return Outcome(result.arrays, result.findings, result.counters)

        return run

    return prepared


def _rung(config: Any) -> Case:
    qkv = generate_qkv(1, 256, 2, 128, DType.FP16)

    def prepared(schedule: str) -> Run:
        def run() -> Outcome:
            result = emulate(config, *qkv, schedule=schedule, seed=1)
            output = result.output.view(torch.int16).numpy()
            return Outcome([output], result.findings, result.counters)

        return run

    return prepared


def measured(case: Case, schedule: str) -> tuple[float, Outcome]:
    """CPU seconds of a run, the mean of as many as take some time, and what the last one did."""
    seconds, runs, outcome = 0.0, 1, None
    while outcome is None or seconds < SHORTEST:
        prepared = [case(schedule) for _ in range(runs)]
        start = time.process_time()
        for run in prepared:
            outcome = run()
        seconds = time.process_time() - start
        mean, runs = seconds / runs, 1 + int(1.2 * runs * SHORTEST / max(seconds, 1e-4))
    return mean, outcome


def digests(outcome: Outcome) -> list[str]:
    """Of the arrays, the findings and the counters."""
    counters = outcome.counters.to_dict()
    for site in (*counters["shared"], *counters["global"]):
        del site["source"]
    texts = (
        b"".join(np.ascontiguousarray(array).tobytes() for array in outcome.arrays),
        "\n".join(map(str, outcome.findings)).encode(),
        json.dumps(counters, sort_keys=True).encode(),
    )
    return [hashlib.sha256(text).hexdigest()[:16] for text in texts]


def serve() -> None:
    """Answer the lines of standard input."""
    known = dict(cases())
    print(json.dumps(list(known)), flush=True)
    for line in sys.stdin:
        name, schedule = json.loads(line)
        seconds, outcome = measured(known[name], schedule)
        print(json.dumps([seconds, *digests(outcome)]), flush=True)


if __name__ == "__main__":
    serve()
