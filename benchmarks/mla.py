# SPDX-License-Identifier: Apache-2.0
"""MLA decoding beside FlashMLA and FlashAttention-3, where their libraries are, outputs compared:

PYTHONPATH=. python benchmarks/mla.py [--out results/h200_mla.json] [--fa3 LIB] [--flashmla LIB]
    [--config 'hopper_mla(BF16, 512): lazy_8+rotary_in_registers+defer_values' ...]

One query of 128 heads for every sequence, keys in pages of 64, bf16. FlashMLA's library is that of
vLLM, FA3's is upstream's, plain or packed by xz. TB/s are those of K, which is read
once; a copy of as many bytes tells what the memory can do. --bars FILE compares with times in a
JSON file, rows of "b", "kv" and "ms" by name under "mla_decode". Configs that are given run beside
the chosen one.
"""

from __future__ import annotations

import argparse
import json
import lzma
import tempfile
from collections.abc import Callable
from functools import partial
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.files import write_record
from flash_attention_workbench.bench.environment import describe
from flash_attention_workbench.bench.peers.fa3 import fa3_path, load_fa3
from flash_attention_workbench.bench.statistics import tflops
from flash_attention_workbench.bench.timing import Contender, time_in_turn

HEADS, D, D_V, PAGE = 128, 576, 512, 64
BATCHES, KEYS, MOST_KEYS = (1, 4, 16, 64), (1024, 8192, 65536), 1 << 20
OWN, COPY, FLASHMLA, FA3 = "own", "copy", "flashmla", "fa3"
MOST_ERROR = 1e-2  # of two outputs, relative RMS
CHECKED_KEYS = 1 << 17  # that the reference has memory for


class Point:
    """The tensors of one batch size and length."""

    def __init__(self, batch: int, keys: int) -> None:
        def drawn(*shape: int) -> Tensor:
            return 0.3 * torch.randn(shape, device="cuda", dtype=torch.bfloat16)

        self.batch, self.keys = batch, keys
        self.q = drawn(batch, 1, HEADS, D)
        self.cache = drawn(batch * keys // PAGE, PAGE, 1, D)
        pages = torch.randperm(batch * keys // PAGE, device="cuda")
        self.table = pages.int().view(batch, -1)
        self.used = torch.full((batch,), keys, device="cuda", dtype=torch.int32)

    @property
    def flop(self) -> int:
        return 2 * self.batch * HEADS * self.keys * (D + D_V)

    @property
    def k_bytes(self) -> int:
        return self.cache.numel() * self.cache.itemsize

    def own(self, config: str | None = None) -> Tensor:
        return attention(
            *(self.q, self.cache, self.cache[..., :D_V]),
            block_table=self.table,
            seqused_k=self.used,
            config=config,
        )

    def reference(self) -> Tensor | None:
        """The output in float32, or None for too many keys."""
        if self.batch * self.keys > CHECKED_KEYS:
            return None
        k = self.cache[self.table.long()].view(self.batch, self.keys, D).float()
        scores = torch.einsum("bhd,bkd->bhk", self.q[:, 0].float(), k) * D**-0.5
        return torch.einsum("bhk,bkd->bhd", scores.softmax(-1), k[..., :D_V])

    def copying(self) -> Callable[[], Tensor]:
        """A copy that reads and writes half of the bytes of K each."""
        half = self.cache.view(-1)[: self.cache.numel() // 2]
        return partial(torch.empty_like(half).copy_, half)

    def flashmla(self, library: Path) -> Callable[[], Tensor]:
        operators = loaded(library, "_flashmla_C")
        plan: list[Any] = [None, None]  # made by the first call

        def run() -> Tensor:
            out, _, plan[0], plan[1] = operators.dense_decode_fwd(
                self.q, self.cache, D_V, self.used, self.table, D**-0.5, True, *plan, None
            )
            result: Tensor = out
            return result

        return run

    def fa3(self, library: Path) -> Callable[[], Tensor]:
        operator = load_fa3(library).fwd
        arguments = [
            *(self.q[..., D_V:].contiguous(), self.cache[..., D_V:], self.cache[..., :D_V]),
            *(None, None, self.q[..., :D_V].contiguous(), None),  # k_new, v_new, q_v, out
            *(None,) * 4,  # cu_seqlens of q, k and k_new; seqused_q
            *(self.used, None, None, self.table),  # the longest lengths; the pages
            *(None,) * 8,  # batch index, padding; rotary; descales of q, k and v
            *(D**-0.5, True, -1, -1),
            *(0, 0.0, False, None),  # attention_chunk, softcap, is_rotary_interleaved, metadata
            *(0, True, 0),  # num_splits, pack_gqa, sm_margin
        ]
        return lambda: operator(*arguments)[0]


def loaded(path: Path, name: str) -> Any:
    """The operators of a library, plain or packed by xz."""
    with tempfile.TemporaryDirectory() as folder:
        if path.suffix == ".xz":
            unpacked = Path(folder) / path.stem
            unpacked.write_bytes(lzma.decompress(path.read_bytes()))
            path = unpacked
        torch.ops.load_library(str(path))
    return getattr(torch.ops, name)


def measure(
    point: Point, configs: list[str], peers: dict[str, Path], repeats: int
) -> dict[str, Any]:
    """Time one point, and compare what was computed."""
    contenders = [Contender(OWN, point.own), Contender(COPY, point.copying())]
    contenders += [Contender(config, partial(point.own, config)) for config in configs]
    contenders += [Contender(name, getattr(point, name)(path)) for name, path in peers.items()]
    expected = point.reference()
    errors: dict[str, float] = {}

    def check(name: str, out: Tensor) -> None:
        nonlocal expected
        if name == COPY:
            return
        rows = out.reshape(point.batch, HEADS, D_V).float()
        expected = rows.clone() if expected is None else expected
        errors[name] = float((rows - expected).norm() / expected.norm())
        if not errors[name] <= MOST_ERROR:
            raise SystemExit(f"{name} at {point.batch} x {point.keys}: error {errors[name]:.2e}")

    device = torch.device("cuda", torch.cuda.current_device())
    timings = time_in_turn(contenders, device=device, repeats=repeats, check=check)
    times = {name: timing.median_ms for name, timing in timings.items()}
    return {
        "b": point.batch,
        "kv": point.keys,
        "ms": times,
        "tflops": {name: tflops(point.flop, ms) for name, ms in times.items() if name != COPY},
        "tb_s": {name: point.k_bytes / ms * 1e-9 for name, ms in times.items()},
        "relative_rms": errors,
    }


def ratio(row: dict[str, Any], bars: dict[tuple[int, int], dict[str, float]]) -> float | None:
    """How many times faster than the best of the others, also those measured elsewhere."""
    others = {name: ms for name, ms in row["ms"].items() if name in (FLASHMLA, FA3)}
    others |= bars.get((row["b"], row["kv"]), {})
    return min(others.values()) / row["ms"][OWN] if others else None


def told(row: dict[str, Any], faster: float | None) -> str:
    parts = [f"{name} {1e3 * ms:.1f} us" for name, ms in row["ms"].items()]
    speed = f"{row['tflops'][OWN]:.0f} TFLOP/s, {row['tb_s'][OWN]:.2f} TB/s"
    best = "" if faster is None else f", {faster:.3f}x the best other"
    copy = f"(a copy {row['tb_s'][COPY]:.2f})"
    return f"{row['b']} x {row['kv']}: {', '.join(parts)}; {speed} {copy}{best}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--fa3", type=Path)
    parser.add_argument("--flashmla", type=Path)
    parser.add_argument("--bars", type=Path)
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--repeats", type=int, default=30)
    given = parser.parse_args()
    peers = {FLASHMLA: given.flashmla, FA3: given.fa3 and fa3_path(given.fa3)}
    peers = {name: path for name, path in peers.items() if path}
    rows = json.loads(given.bars.read_text())["mla_decode"] if given.bars else []
    bars = {(row["b"], row["kv"]): row["ms"] for row in rows}
    measured, ratios = [], []
    for batch in BATCHES:
        for keys in KEYS:
            if batch * keys > MOST_KEYS:
                continue
            measured.append(measure(Point(batch, keys), given.config, peers, given.repeats))
            ratios.append(ratio(measured[-1], bars))
            print(told(measured[-1], ratios[-1]), flush=True)
    known = [each for each in ratios if each is not None]
    if known:
        together = exp(mean(map(log, known)))
        print(f"to the best other: {together:.3f}x in geometric mean, {min(known):.3f}x at least")
    if given.out:
        command = f"python benchmarks/mla.py --out {given.out}"
        write_record(given.out, describe() | {"command": command, "rows": measured})


if __name__ == "__main__":
    main()
