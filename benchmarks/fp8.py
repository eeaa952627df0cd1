# SPDX-License-Identifier: Apache-2.0
"""Attention of e4m3 tensors beside cuDNN's, where its frontend is installed, every output checked:

python benchmarks/fp8.py [--out results/h200_fp8.json] [--linear] [--repeats 15]

The time includes the kernel that transposes V, but for "transposed", where V is given with
contiguous keys. cuDNN's output is e4m3, since it has no other on Hopper. With --linear the kernels
with half of their weights piecewise linear run as well, and --drift tells the error for V = normal
+ 1 and 8,192 keys.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from flash_attention import attention, forward
from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.choose.heuristic import select_config
from flash_attention.families.sm90.fp8.config import HopperFp8KernelConfig
from flash_attention.files import write_record
from flash_attention.launch.device import current_arch
from flash_attention.reference.judge import generate_qkv
from flash_attention.reference.oracle import oracle
from flash_attention_workbench.bench.environment import describe
from flash_attention_workbench.bench.statistics import tflops
from flash_attention_workbench.bench.timing import Contender, time_in_turn

E4M3 = torch.float8_e4m3fn
TOKENS, WIDTH = 16384, 2048  # batch x rows, heads x d
ROWS = (1024, 4096, 16384)
CHECKED_ROWS = 256  # of the first head, since the oracle stores their scores
MOST_ERROR = {"cudnn": 6e-2}
OWN_ERROR = 3.5e-2
OWN, TRANSPOSED, LINEAR, CUDNN = "own", "transposed", "linear", "cudnn"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--linear", action="store_true")
    parser.add_argument("--drift", action="store_true")
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    if given.drift:
        drift()
        return
    rows = []
    for d, causal, seq in product((64, 128, 256), (False, True), ROWS):
        rows.append(measure(d, seq, causal, given.linear, given.repeats))
        print(told(rows[-1]), flush=True)
    for name, other in ((OWN, CUDNN), (TRANSPOSED, OWN)):
        pairs = [row["tflops"] for row in rows if other in row["tflops"]]
        if faster := [speeds[name] / speeds[other] for speeds in pairs]:
            together = exp(mean(map(log, faster)))
            print(f"{name} to {other}: {together:.3f}x together, {min(faster):.3f}x at least")
    if given.out:
        words = "--linear " if given.linear else ""
        command = f"python benchmarks/fp8.py {words}--out {given.out}"
        write_record(given.out, describe() | {"command": command, "rows": rows})


def measure(d: int, seq: int, causal: bool, linear: bool, repeats: int) -> dict[str, Any]:
    """Time one point of the grid, and check what was computed."""
    device = torch.device("cuda", torch.cuda.current_device())
    q, k, v = generate_qkv(TOKENS // seq, seq, WIDTH // d, d, E4M3, device)
    one = torch.ones(1, device=device)
    keywords: dict[str, Any] = {"q_descale": one, "k_descale": one, "v_descale": one}
    keywords["causal"] = causal
    contenders = [
        Contender(OWN, partial(attention, q, k, v, **keywords)),
        Contender(TRANSPOSED, partial(attention, q, k, with_contiguous_keys(v), **keywords)),
    ]
    problem = Problem.of(Call(q, k, v, **keywords))
    config = select_config(problem, current_arch())
    assert isinstance(config, HopperFp8KernelConfig)
    if linear and config.tensor_sums:
        faster = replace(config, linear_groups=2)
        contenders.append(Contender(LINEAR, partial(forward, faster, q, k, v, **keywords)))
    if (of_cudnn := cudnn_call(q, k, v, causal)) is not None:
        contenders.append(Contender(CUDNN, of_cudnn))
    exact = exact_rows(q, k, v, keywords)
    errors = {}

    def check(name: str, out: Tensor) -> None:
        errors[name] = relative_rms(out[:1, -CHECKED_ROWS:, :1], exact)
        if not errors[name] <= MOST_ERROR.get(name, OWN_ERROR):
            raise SystemExit(f"{name} at d {d}, {seq} rows: relative RMS error {errors[name]:.2e}")

    timings = time_in_turn(contenders, device=device, repeats=repeats, check=check)
    flop = 4 * TOKENS * seq * WIDTH // (2 if causal else 1)
    return {
        "d": d,
        "seq": seq,
        "causal": causal,
        "config": str(config),
        "ms": {name: timing.median_ms for name, timing in timings.items()},
        "tflops": {name: tflops(flop, timing.median_ms) for name, timing in timings.items()},
        "relative_rms": errors,
    }


def with_contiguous_keys(v: Tensor) -> Tensor:
    """Copy v, whose length is a multiple of 16, so that its keys are contiguous."""
    return v.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def exact_rows(q: Tensor, k: Tensor, v: Tensor, keywords: dict[str, Any]) -> Tensor:
    """The last rows of the first head, in float64. Under a causal mask they see all keys, too."""
    last = q[:1, -CHECKED_ROWS:, :1]
    return oracle(last, k[:1, :, :1], v[:1, :, :1], **keywords)


def relative_rms(out: Tensor, exact: Tensor) -> float:
    return float((out.double() - exact).norm() / exact.norm())


def told(row: dict[str, Any]) -> str:
    mask = "causal" if row["causal"] else "full"
    parts = (
        f"{name} {speed:.0f} TFLOP/s ({row['relative_rms'][name]:.1e})"
        for name, speed in row["tflops"].items()
    )
    return f"d {row['d']} {mask} {row['seq']}: {', '.join(parts)}"


def drift() -> None:
    """Tell the error of outputs whose columns of V have a mean of one."""
    for d, causal in product((64, 128, 256), (False, True)):
        q, k, v = generate_qkv(1, 8192, 1, d, torch.float32, "cuda")
        q, k, v = (t.to(E4M3) for t in (q, k, v + 1))
        one = torch.ones(1, device="cuda")
        keywords: dict[str, Any] = {"q_descale": one, "k_descale": one, "v_descale": one}
        keywords["causal"] = causal
        out = attention(q, k, v, **keywords)
        error = relative_rms(out, oracle(q, k, v, **keywords))
        print(f"d {d} {'causal' if causal else 'full'}: {error:.2e}")


def cudnn_call(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Callable[[], Tensor] | None:
    """Return a call of cuDNN, or None without its frontend."""
    try:
        cudnn: Any = importlib.import_module("cudnn")
    except ImportError:
        return None
    eight, full = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    graph = cudnn.pygraph(
        io_data_type=eight, intermediate_data_type=full, compute_data_type=full, handle=handle
    )
    tensors = {"q": q, "k": k, "v": v}
    inputs = {n: graph.tensor(name=n, **_shaped(t), data_type=eight) for n, t in tensors.items()}
    names = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
    scales = {name: graph.tensor(name=name, **_UNIT, data_type=full) for name in names}
    scale = q.shape[-1] ** -0.5
    options = {"generate_stats": True, "attn_scale": scale, "use_causal_mask": causal}
    out, stats, *largest = graph.sdpa_fp8(name="attention", **inputs, **scales, **options)
    out.set_output(True).set_dim(_shaped(q)["dim"]).set_stride(_shaped(q)["stride"])
    out.set_data_type(eight)
    stats.set_output(True).set_data_type(full)
    for tensor in largest:
        tensor.set_output(True).set_dim(_UNIT["dim"]).set_stride(_UNIT["stride"])
        tensor.set_data_type(full)
    graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    workspace = torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8, device=q.device)
    ones, result = torch.ones(1, 1, 1, 1, device=q.device), torch.empty_like(q)
    of_scales = {"descale_s": ones / 256, "scale_s": ones * 256}
    batch, rows, heads, _ = q.shape
    pack = {inputs[name]: tensor.view(torch.uint8) for name, tensor in tensors.items()}
    pack |= {scales[name]: of_scales.get(name, ones) for name in names}
    pack |= {tensor: torch.empty_like(ones) for tensor in largest}
    pack[out] = result.view(torch.uint8)
    pack[stats] = torch.empty(batch, heads, rows, 1, device=q.device)

    def run() -> Tensor:
        graph.execute(pack, workspace, handle=handle)
        return result

    return run


_UNIT = {"dim": [1] * 4, "stride": [1] * 4}


def _shaped(tensor: Tensor) -> dict[str, list[int]]:
    """The sizes and strides of a tensor as cuDNN has them, heads before rows."""
    order = (0, 2, 1, 3)
    return {"dim": [tensor.shape[i] for i in order], "stride": [tensor.stride(i) for i in order]}


if __name__ == "__main__":
    main()
