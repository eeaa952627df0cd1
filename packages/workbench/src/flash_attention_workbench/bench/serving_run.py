# SPDX-License-Identifier: Apache-2.0
"""A step of a serving engine, measured: packed, with a batch dimension, batch-invariant, and by
vLLM's FA3."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flash_attention.attention import attention
from flash_attention.call.call import Call
from flash_attention.call.results import E4M3
from flash_attention.errors import FlashAttentionError
from flash_attention.files import FilePath
from flash_attention.launch.plans import plan_for
from flash_attention.records import Count, Positive, Size
from flash_attention.reference.judge import Check, cu_seqlens
from flash_attention.reference.part_judge import PartJudge
from flash_attention.warm_up import warm_up
from flash_attention_workbench.bench.grid_record import load_measured, measured
from flash_attention_workbench.bench.peers.fa3 import FA3, check_hopper, fa3_path
from flash_attention_workbench.bench.peers.lineup import first_lines
from flash_attention_workbench.bench.peers.vllm_fa3 import load_vllm_fa3, vllm_fa3_arguments
from flash_attention_workbench.bench.serving import SERVING, Layer, Step, drawn_decode
from flash_attention_workbench.bench.statistics import gigabytes_per_second
from flash_attention_workbench.bench.timing import Contender, captured, time_in_turn

PACKED, BATCHED = "packed", "batched"  # ours, with packed queries and with a batch dimension
INVARIANT = "invariant"  # ours, packed and batch_invariant
OURS = (PACKED, BATCHED, INVARIANT)
FEWEST_HEADS = 1  # scores that the oracle may compute; it takes two heads at least
HOST_STEPS = 60


@dataclass(frozen=True)
class ServingRow:
    """One step: the microseconds of every contender whose output was right, and why others have
    none."""

    label: str
    layer: str
    sequences: Size
    queries: Size  # of all sequences
    keys: Count
    config: str  # of the kernel of packed queries
    us: Mapping[str, Positive]
    spread: Mapping[str, float]  # interquartile range, as a fraction of the median
    error_ratio: Mapping[str, float]  # largest error, in units of 16-bit torch's
    gbps: Positive | None  # bytes of K and V over our time
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether our outputs are right."""
        return PACKED in self.us and not set(OURS) & self.refused.keys()

    @property
    def ratio(self) -> float | None:
        """How many times as fast as FA3 packed queries are; None without FA3."""
        return self.us[FA3] / self.us[PACKED] if {FA3, PACKED} <= self.us.keys() else None


@dataclass(frozen=True)
class ServingRecord:
    """What a stored file of the grid has. It says more of where it was measured."""

    device: str
    date: str
    commit: str | None
    command: str
    grid: str
    repeats: Size
    l2: str  # cold or hot
    rows: tuple[ServingRow, ...]
    host_us: Mapping[str, Mapping[str, Positive]]  # of a call, by contender: new and known shapes


def load_serving(path: FilePath) -> ServingRecord:
    """Read what `flash-attention bench --grid serving --json` wrote."""
    what = "a measured serving grid, as `flash-attention bench --grid serving --json` writes it"
    return load_measured(path, ServingRecord, SERVING, what)


def serving_record(record: Mapping[str, Any]) -> ServingRecord:
    """The record of a file that was read."""
    return measured(record, ServingRecord, SERVING)


@dataclass(frozen=True)
class How:
    """How steps are measured."""

    device: torch.device
    repeats: int = 25
    hot: bool = False
    graph: bool = False
    peers: tuple[str, ...] = (FA3,)
    fa3: Path | None = None  # the library of vLLM's FA3


def call_of(step: Step, device: torch.device, seed: int = 0) -> Call:
    """A step in memory. Every page of the cache belongs to one sequence, at a random place."""
    layer, generator = step.layer, torch.Generator(device).manual_seed(seed)
    pages = [-(-keys // layer.page) for keys in step.keys]
    order = torch.randperm(sum(pages), generator=generator, device=device).int()
    table = torch.zeros(len(pages), max(pages), dtype=torch.int32, device=device)
    for row, own in zip(table, order.split(pages), strict=True):
        row[: len(own)] = own
    shape = (sum(pages), layer.page, layer.heads_k, layer.d)
    k, v = (drawn(shape, layer, generator) for _ in "kv")
    return engine_call(layer, step.queries, step.keys, (k, v), table, generator)


def drawn(shape: Sequence[int], layer: Layer, generator: torch.Generator) -> Tensor:
    """Random numbers of the type that q, k and v of a layer have."""
    normal = torch.randn(shape, generator=generator, dtype=torch.bfloat16, device=generator.device)
    return normal.to(E4M3) if layer.of_8_bits else normal


def engine_call(
    layer: Layer,
    queries: Sequence[int],
    keys: Sequence[int],
    cache: tuple[Tensor, Tensor],
    table: Tensor,
    generator: torch.Generator,
) -> Call:
    """The call of an engine for sequences of these lengths, whose keys are in pages of a cache. The
    queries are random."""
    device = table.device
    q = drawn((sum(queries), layer.heads, layer.d), layer, generator)
    one = torch.ones(1, device=device)
    factors: dict[str, Any] = {f"{name}_descale": one for name in "qkv"} if layer.of_8_bits else {}
    sinks = torch.randn(layer.heads, generator=generator, device=device) if layer.sinks else None
    return Call(
        *(q, *cache, torch.full_like(q, math.nan, dtype=torch.bfloat16)),
        sinks=sinks if sinks is None else sinks.bfloat16().float(),  # as FA3 takes them
        cu_seqlens_q=cu_seqlens(queries, device),
        max_seqlen_q=max(queries),
        seqused_k=torch.tensor(keys, dtype=torch.int32, device=device),
        block_table=table,
        causal=True,
        window=layer.window,
        **factors,
    )


def packed_run(call: Call) -> Callable[[], Tensor]:
    """Ours, as an engine calls it."""
    keywords = call.keywords()
    return lambda: attention(call.q, call.k, call.v, out=call.out, **keywords)


def _batched_run(call: Call, queries: int) -> Callable[[], Tensor]:
    """Ours with queries of shape (batch, queries, heads, d). The output has the packed shape."""
    assert call.out is not None
    shape = (-1, queries, *call.q.shape[1:])
    whole = call._replace(
        q=call.q.view(shape), out=call.out.view(shape), cu_seqlens_q=None, max_seqlen_q=None
    )
    run, packed_shape = packed_run(whole), call.q.shape
    return lambda: run().view(packed_shape)


def fa3_run(call: Call, longest_k: int, library: Path | None) -> Callable[[], Tensor]:
    """vLLM's FA3. Raises UnsupportedError if it is not here."""
    check_hopper(call.q)
    forward, arguments = load_vllm_fa3(fa3_path(library)), vllm_fa3_arguments(call, longest_k)

    def run() -> Tensor:
        out: Tensor = forward(*arguments)[0]
        return out

    return run


def measure_step(step: Step, how: How) -> ServingRow:
    """Time a step's contenders in turn, and check what each computed."""
    call = call_of(step, how.device)
    out = call.out
    assert out is not None
    ways: dict[str, Callable[[], Callable[[], Tensor]]] = {PACKED: lambda: packed_run(call)}
    if (queries := step.even_queries) is not None:
        ways[BATCHED] = lambda: _batched_run(call, queries)
    ways[INVARIANT] = lambda: packed_run(call._replace(batch_invariant=True))
    if FA3 in how.peers:
        ways[FA3] = lambda: fa3_run(call, max(step.keys), how.fa3)
    contenders, refused = [], {}
    for name, way in ways.items():
        try:
            contender = Contender(name, way(), poison=lambda: out.fill_(math.nan))
            contender.run()
            contenders.append(captured(contender) if how.graph else contender)
        except (FlashAttentionError, RuntimeError, OSError) as reason:
            refused[name] = first_lines(reason)
    judge = PartJudge(*call[:3], scores=FEWEST_HEADS, **call.keywords())
    checks: dict[str, Check] = {}
    timings = time_in_turn(
        contenders,
        device=how.device,
        repeats=how.repeats,
        check=lambda name, out: checks.update({name: judge.check(out)}),
        hot=how.hot,
    )
    refused |= {name: f"wrong: {check}" for name, check in checks.items() if not check.ok}
    right = {name: timing for name, timing in timings.items() if checks[name].ok}
    ours = right.get(PACKED)
    return ServingRow(
        *(step.label, step.layer.words, len(step.keys), sum(step.queries), sum(step.keys)),
        config=plan_for(call).config.short_form() if PACKED not in refused else "",
        us={name: 1e3 * timing.median_ms for name, timing in right.items()},
        spread={name: timing.spread for name, timing in right.items()},
        error_ratio={name: check.ratio for name, check in checks.items()},
        gbps=None if ours is None else gigabytes_per_second(step.kv_bytes, ours.median_ms),
        refused=refused,
    )


def host_times(how: How, steps: int = HOST_STEPS, seed: int = 0) -> dict[str, dict[str, float]]:
    """Medians of the microseconds that a call takes on the host, by contender: the first call with
    some shapes, and the second. The GPU is idle when a call begins, and kernels are compiled."""
    draw = random.Random(seed)
    samples: dict[str, dict[str, list[float]]] = {}
    warm_up(*(first := call_of(drawn_decode(draw), how.device))[:3], **first.keywords())
    for _ in range(steps):
        step = drawn_decode(draw)
        call = call_of(step, how.device)
        runs = {PACKED: packed_run(call)}
        if FA3 in how.peers:
            try:
                runs[FA3] = fa3_run(call, max(step.keys), how.fa3)
            except (FlashAttentionError, RuntimeError, OSError):
                how = replace(how, peers=())  # the rows say why
        for name, run in runs.items():
            for shapes in ("new", "known"):
                if how.device.type == "cuda":
                    torch.cuda.synchronize(how.device)
                begin = time.perf_counter()
                run()
                taken = 1e6 * (time.perf_counter() - begin)
                samples.setdefault(name, {}).setdefault(shapes, []).append(taken)
    return {
        name: {shapes: statistics.median(taken) for shapes, taken in of.items()}
        for name, of in samples.items()
    }


def summary(rows: Sequence[ServingRow]) -> list[str]:
    """Short lines to end a run with: who is missing and why, the mean and the least."""
    lines = [
        f"{row.label}, {row.layer}: {name}: {why}"
        for row in rows
        for name, why in row.refused.items()
    ]
    ratios = {f"{row.label}, {row.layer}": row.ratio for row in rows if row.ratio is not None}
    if ratios:
        mean, slow = statistics.geometric_mean(ratios.values()), min(ratios, key=ratios.__getitem__)
        lines.append(
            f"times as fast as FA3: geometric mean {mean:.3f}, least {ratios[slow]:.3f} ({slow})"
        )
    return lines
