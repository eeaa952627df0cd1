# SPDX-License-Identifier: Apache-2.0
"""What a call costs on the host: in steady state beside torch's SDPA, and first in a process; and
the memory of a training step beside FlashAttention-3, if $FLASH_ATTENTION_FA3 names its library.

Run on a machine with a GPU: python benchmarks/host_cost.py [--training] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from flash_attention import DType, attention, forward, forward_kernels
from flash_attention.files import write_record
from flash_attention.kernel_configs import KernelConfig
from flash_attention.ladder import get_ladder
from flash_attention.launch.device import current_arch
from flash_attention.reference.judge import generate_qkv
from flash_attention_workbench.bench.environment import describe
from flash_attention_workbench.bench.gradient_case import GradientCase
from flash_attention_workbench.bench.grid import Measured, Point
from flash_attention_workbench.bench.peers.fa3 import FA3
from flash_attention_workbench.bench.peers.gradients import line_up_gradients
from flash_attention_workbench.commands.options import last_rung_on

SHAPE = (1, 128, 16, 128)  # small enough that the GPU never holds the host up
CALLS = 100  # in one round, fewer than the launch queue holds
TRAINED = Point(d_head=128, causal=True, seq_len=8192, batch=2, heads=16)  # whose memory is told


def config() -> KernelConfig:
    ladder = get_ladder(DType.FP16, d_head=SHAPE[3], n_heads=SHAPE[2])
    return last_rung_on(ladder, current_arch()).config


def microseconds_per_call(
    calls: Mapping[str, Callable[[], object]], rounds: int
) -> dict[str, float]:
    """Medians over rounds of the host times of calls. They take turns, because the speed of the
    host changes while it is measured. The GPU is idle when a turn begins."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):  # the first round compiles
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - start) / CALLS * 1e6)
    torch.cuda.synchronize()
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def steady_state(rounds: int) -> dict[str, float]:
    """Microseconds a call, for inputs (batch, seq, heads, d_head) = SHAPE unless said."""
    cfg = config()
    q, k, v = generate_qkv(*SHAPE, DType.FP16, "cuda")
    o = torch.empty_like(q)
    q_t, k_t, v_t = (t.transpose(1, 2).contiguous() for t in (q, k, v))
    one, keys, values = generate_qkv(1, 1, 32, 128, DType.FP16, "cuda", seq_len_k=1024, n_heads_k=8)
    calls = {
        "forward": lambda: forward(cfg, q, k, v),
        "forward, o given": lambda: forward(cfg, q, k, v, o),
        "attention": lambda: attention(q, k, v),
        "attention, causal, out given": lambda: attention(q, k, v, causal=True, out=o),
        "attention, one query": lambda: attention(one, keys, values),
        "torch SDPA (flash)": lambda: scaled_dot_product_attention(q_t, k_t, v_t),
        "torch.empty_like": lambda: torch.empty_like(q),
    }
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return microseconds_per_call(calls, rounds)


class _Nothing(Function):
    """What autograd and the allocator take in every function that is written in Python: a node with
    the saved tensors of attention, and as many new tensors."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out, torch.empty_like(q))
        return out

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> Any:
        return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors[:3])


def training_step(rounds: int) -> dict[str, float]:
    """Microseconds of the two calls of a training step through autograd."""
    ours = [t.requires_grad_() for t in generate_qkv(*SHAPE, DType.FP16, "cuda")]
    q, k, v = torchs = [t.detach().transpose(1, 2).contiguous().requires_grad_() for t in ours]
    do = torch.randn_like(ours[0])
    do_t = do.transpose(1, 2).contiguous()
    rows, starts = [t.detach()[0].requires_grad_() for t in ours], _starts([40, 60, 28])
    lengths: dict[str, Any] = {
        **{"cu_seqlens_q": starts, "max_seqlen_q": 60},
        **{"cu_seqlens_k": starts, "max_seqlen_k": 60},
    }
    nothing: Callable[..., Any] = _Nothing.apply

    def step() -> None:
        torch.autograd.grad(attention(*ours), ours, do)

    def packed_step() -> None:
        torch.autograd.grad(attention(*rows, **lengths), rows, do[0])

    def torchs_step() -> None:
        torch.autograd.grad(scaled_dot_product_attention(q, k, v), torchs, do_t)

    calls = {
        "attention, both passes": step,
        "attention, packed, both passes": packed_step,
        "torch SDPA (flash), both passes": torchs_step,
        "an empty function, both passes": lambda: torch.autograd.grad(nothing(*ours), ours, do),
        "attention, recorded": lambda: attention(*ours),
        "torch SDPA (flash), recorded": lambda: scaled_dot_product_attention(q, k, v),
    }
    one_thread = {f"{name}, one thread": call for name, call in list(calls.items())[:4]}
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        found = microseconds_per_call(calls, rounds)
        with torch.autograd.set_multithreading_enabled(False):  # without waking autograd's thread
            return found | microseconds_per_call(one_thread, rounds) | new_lengths(rounds)


def new_lengths(steps: int) -> dict[str, float]:
    """Microseconds of a training step on short packed sequences with lengths that are new, and of
    the next one, both while the GPU is idle."""
    draw, heads, d_head = random.Random(0), SHAPE[2], SHAPE[3]
    times: dict[str, list[float]] = {"new": [], "known": []}
    for _ in range(steps + 20):
        counts = [draw.randint(1, 60) for _ in range(draw.randint(2, 9))]
        shape = (sum(counts), heads, d_head)
        given = [torch.zeros(shape, dtype=torch.float16, device="cuda") for _ in range(4)]
        leaves, starts = [t.requires_grad_() for t in given[:3]], _starts(counts)
        for taken in times.values():
            torch.cuda.synchronize()
            start = time.perf_counter()
            out = attention(
                *leaves,
                cu_seqlens_q=starts,
                max_seqlen_q=max(counts),
                cu_seqlens_k=starts,
                max_seqlen_k=max(counts),
            )
            torch.autograd.grad(out, leaves, given[3])
            taken.append((time.perf_counter() - start) * 1e6)
    return {
        f"attention, packed, both passes, one thread, {name} lengths": statistics.median(taken[20:])
        for name, taken in times.items()
    }


def _starts(counts: list[int]) -> Tensor:
    return torch.tensor([0, *counts]).cumsum(0).int().cuda()


def peak_memory() -> dict[str, float]:
    """MiB that a training step of TRAINED needs at most, besides its inputs. FA3 may not share a
    process with cuDNN."""
    of = GradientCase.of(TRAINED, DType.BF16, Measured.TRAINING, "cuda")
    lineup = line_up_gradients((FA3,), of)
    for name, reason in lineup.missing.items():
        print(f"{name}: {reason}", file=sys.stderr)
    peaks = {}
    for contender in (of.ours("attention"), *lineup.contenders):
        contender.run()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        contender.run()
        peaks[contender.name] = (torch.cuda.max_memory_allocated() - before) / 2**20
    return peaks


def first_call() -> dict[str, float | None]:
    """Milliseconds of this process's first call, and of NVRTC within it; CUDA is up already."""
    cfg = config()
    q, k, v = generate_qkv(*SHAPE, DType.FP16, "cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    forward(cfg, q, k, v)
    torch.cuda.synchronize()
    total = time.perf_counter() - start
    compiled = forward_kernels[cfg].compiled.compile_seconds
    return {"total_ms": total * 1e3, "compile_ms": None if compiled is None else compiled * 1e3}


def elsewhere(option: str, **environment: str) -> Any:
    """What this program prints last with an option, in a new process."""
    command = [sys.executable, __file__, option]
    environ = os.environ | environment
    done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def first_call_elsewhere(cache: Path) -> dict[str, float | None]:
    """`first_call` in a new process that uses the given cache folder."""
    result: dict[str, float | None] = elsewhere(
        "--first-call", FLASH_ATTENTION_CACHE_DIR=str(cache)
    )
    return result


def first_calls(processes: int) -> dict[str, float]:
    """Median milliseconds of a first call with an empty cache folder and with a filled one."""
    cold, compiling, warm = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(processes):
            cache = Path(folder) / str(i)
            result = first_call_elsewhere(cache)
            if result["total_ms"] is None or result["compile_ms"] is None:
                raise RuntimeError(f"an empty cache folder did not lead to a compile: {result}")
            cold.append(result["total_ms"])
            compiling.append(result["compile_ms"])
            result = first_call_elsewhere(cache)
            if result["total_ms"] is None or result["compile_ms"] is not None:
                raise RuntimeError(f"a filled cache folder led to a compile: {result}")
            warm.append(result["total_ms"])
    return {
        "first call, empty cache": statistics.median(cold),
        "of which NVRTC": statistics.median(compiling),
        "first call, from disk": statistics.median(warm),
    }


def print_table(title: str, unit: str, rows: dict[str, float]) -> None:
    print(title)
    for name, value in rows.items():
        print(f"  {name:<58}{value:8.1f} {unit}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    parser.add_argument("--rounds", type=int, default=200, help=f"rounds of {CALLS} calls")
    parser.add_argument("--processes", type=int, default=3, help="new processes of each kind")
    parser.add_argument("--training", action="store_true", help="only the training steps")
    parser.add_argument("--first-call", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--peak-memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("host_cost.py needs an NVIDIA GPU; torch sees none")
    if options.first_call:
        print(json.dumps(first_call()))
        return
    if options.peak_memory:
        print(json.dumps(peak_memory()))
        return
    if options.training:
        print_table("host time of a training step", "us", training_step(options.rounds))
        return
    steady = steady_state(options.rounds) | training_step(options.rounds)
    first = first_calls(options.processes)
    peaks = elsewhere("--peak-memory")
    gpu = torch.cuda.get_device_name()
    print(f"{gpu}, torch {torch.__version__}, Python {platform.python_version()}")
    print_table(f"host time of a call, shape {SHAPE}", "us", steady)
    print_table("first call of a process, torch and CUDA up", "ms", first)
    print_table(f"peak memory of a training step, {TRAINED.label}", "MiB", peaks)
    if options.json:
        setting = {**describe(), "config": config().short_form(), "shape": SHAPE}
        memory = {"trained": TRAINED.label, "peak_mib": peaks}
        record = {**setting, "steady_us": steady, "first_call_ms": first, **memory}
        write_record(options.json, record)


if __name__ == "__main__":
    main()
