# SPDX-License-Identifier: Apache-2.0
"""Replay recorded steps of an engine through the functions that it calls, ours beside vLLM's FA3:

python -m benchmarks.recorded.replay results/h200_recorded.json --fa3 _vllm_fa3_C.abi3.so
python -m benchmarks.recorded.replay sglang.json --engine sglang --fa3 _vllm_fa3_C.abi3.so

Every step runs in four layers. K and V are laid out as the engine does: halves of one cache in
vLLM, a cache each in SGLang. Outputs of both are compared with each other in every call, and every
tenth output of ours with float32.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.compat.sglang import flash_attn_with_kvcache
from flash_attention.compat.vllm import flash_attn_varlen_func
from flash_attention.files import write_record
from flash_attention.launch.plan import Plan
from flash_attention.reference.judge import cu_seqlens
from flash_attention.reference.part_judge import PartJudge
from flash_attention_workbench.bench.environment import describe
from flash_attention_workbench.bench.peers.fa3 import FA3
from flash_attention_workbench.bench.serving import Layer
from flash_attention_workbench.bench.serving_run import FEWEST_HEADS, drawn, engine_call, fa3_run
from flash_attention_workbench.bench.timing import Contender, time_in_turn

ENGINES = ("vllm", "sglang", "sglang_64")  # the records beside this file
OURS = "ours"
ONE, TWO = "ours, one launch", "ours, two launches"
IN_LAUNCHES = {ONE: False, TWO: True}  # whether sequences that decode have a kernel of their own
LAUNCHES = {"one": [ONE], "two": [TWO], "both": [ONE, TWO]}
CHECKED = 10  # one call of so many is compared with float32
TOLERANCE = {False: 6e-3, True: 4e-2}
"""The norm of the difference of two outputs, as a fraction of the output's, that the numbers of a
layer explain, by whether they have 8 bits."""


@dataclass(frozen=True)
class Step:
    """A call of the engine: queries, keys and pages of each request."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    pages: tuple[tuple[int, ...], ...]


LAYERS = {
    "32:8 heads, d 128": Layer(32, 8, 128),
    "28:4 heads, d 128": Layer(28, 4, 128),
    "64:8 heads, d 64, sinks, window of 128": Layer(64, 8, 64, sinks=True, window=(127, 0)),
    "32:8 heads, d 128, 8 bits": Layer(32, 8, 128, of_8_bits=True),
}


@dataclass(frozen=True)
class Row:
    """One call: who took how many microseconds, and how far the outputs are apart."""

    layer: str
    step: int
    requests: int
    queries: int
    keys: int
    us: dict[str, float]
    difference: float | None  # the norm, as a fraction of the output's; None without FA3
    right: bool


def read_record(engine: str) -> dict[str, Any]:
    """What was recorded of an engine."""
    record: dict[str, Any] = json.loads((Path(__file__).parent / f"{engine}.json").read_text())
    return record


def numbers(first: int, count: int, step: int = 1) -> range:
    """A run of pages."""
    return range(first, first + count * step, step)


def read_steps(engine: str = "vllm") -> tuple[int, list[Step]]:
    """The size of a page, and the steps of the file."""
    record = read_record(engine)
    page = int(record["page"])
    pages = {
        int(request): [*chain(*(numbers(*run) for run in found))]
        for request, found in record["pages"].items()
    }

    def step(planned: Sequence[tuple[int, int, int]]) -> Step:
        requests, queries, keys = zip(*planned, strict=True)
        own = (pages[each][: -(-count // page)] for each, count in zip(requests, keys, strict=True))
        return Step(queries, keys, tuple(map(tuple, own)))

    return page, [step(planned) for planned in record["steps"]]


def cache_of(layer: Layer, pages: int, page: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """K and V, random, as vLLM lays them out: heads before rows, and V beside K."""
    generator = torch.Generator(device).manual_seed(pages)
    both = drawn((pages, layer.heads_k, page, 2 * layer.d), layer, generator)
    k, v = both.transpose(1, 2).split(layer.d, dim=-1)
    return k, v


def call_of(step: Step, layer: Layer, cache: tuple[Tensor, Tensor], seed: int = 0) -> Call:
    """The step in memory, in the words of this package."""
    device = cache[0].device
    table = torch.zeros(len(step.pages), max(map(len, step.pages)), dtype=torch.int32)
    for row, pages in zip(table, step.pages, strict=True):
        row[: len(pages)] = torch.tensor(pages, dtype=torch.int32)
    generator = torch.Generator(device).manual_seed(seed)
    return engine_call(layer, step.queries, step.keys, cache, table.to(device), generator)


def as_vllm_calls(call: Call, longest: int) -> Tensor:
    """What vLLM's backend calls, with the keywords that it passes."""
    assert call.block_table is not None
    assert call.cu_seqlens_q is not None
    assert call.max_seqlen_q is not None
    shape = (len(call.block_table), call.k.shape[2])
    factors = [
        None if factor is None else factor.expand(shape)
        for factor in (call.q_descale, call.k_descale, call.v_descale)
    ]
    found = flash_attn_varlen_func(
        q=call.q,
        k=call.k,
        v=call.v,
        out=call.out,
        cu_seqlens_q=call.cu_seqlens_q,
        max_seqlen_q=call.max_seqlen_q,
        seqused_k=call.seqused_k,
        max_seqlen_k=longest,
        softmax_scale=call.q.shape[-1] ** -0.5,
        causal=True,
        window_size=None if call.window is None else [each or 0 for each in call.window],
        block_table=call.block_table,
        fa_version=3,
        q_descale=factors[0],
        k_descale=factors[1],
        v_descale=factors[2],
        s_aux=call.sinks,
    )
    assert isinstance(found, Tensor)
    return found


def in_launches(call: Call, longest: int, launches: str | None) -> dict[str, Callable[[], Any]]:
    """Ours with one launch and with two, as far as they are asked for and the step may have both
    prompts and sequences that decode."""
    known = call._replace(max_seqlen_k=longest)
    if launches is None or Plan(known, mixed=True).choice.decoding is None:
        return {}
    return {
        name: partial(Plan(known, mixed=IN_LAUNCHES[name]).run, known)
        for name in LAUNCHES[launches]
    }


def sglang_keywords(call: Call) -> dict[str, Any]:
    """What SGLang's backend passes to flash_attn_with_kvcache."""
    assert call.block_table is not None
    assert call.seqused_k is not None
    given: dict[str, Any] = {"q": call.q, "k_cache": call.k, "v_cache": call.v}
    given |= {"page_table": call.block_table, "cache_seqlens": call.seqused_k}
    given |= {"cu_seqlens_q": call.cu_seqlens_q, "max_seqlen_q": call.max_seqlen_q}
    given |= {"softmax_scale": call.q.shape[-1] ** -0.5, "causal": True, "softcap": 0.0}
    given["window_size"] = (-1, -1) if call.window is None else call.window
    given |= {"return_softmax_lse": False, "num_splits": 0, "ver": 3, "out": None}
    if call.max_seqlen_q == 1:
        given["scheduler_metadata"] = None
    else:
        given["cu_seqlens_k_new"] = cu_seqlens(call.seqused_k.tolist(), call.q.device)
    if call.sinks is not None:
        given["sinks"] = call.sinks
    factors = {"k_descale": call.k_descale, "v_descale": call.v_descale}
    shape = (len(call.block_table), call.k.shape[2])
    return given | {name: of.expand(shape) for name, of in factors.items() if of is not None}


def as_engine_calls(engine: str, call: Call, longest: int) -> Callable[[], Tensor]:
    """What the backend of an engine calls, with the keywords that it passes."""
    if engine == "vllm":
        return lambda: as_vllm_calls(call, longest)
    keywords = sglang_keywords(call)

    def run() -> Tensor:
        found = flash_attn_with_kvcache(**keywords)
        assert isinstance(found, Tensor)
        return found

    return run


def laid_out(engine: str, cache: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """A cache of vLLM as an engine lays it out."""
    k, v = cache
    return cache if engine == "vllm" else (k.contiguous(), v.contiguous())


def measure(name: str, number: int, step: Step, call: Call, given: argparse.Namespace) -> Row:
    """Time a call, and compare the outputs."""
    longest, found = max(step.keys), dict[str, Tensor]()
    out = call.out
    assert out is not None

    def spoil() -> None:
        out.fill_(math.nan)

    runs = {OURS: as_engine_calls(given.engine, call, longest)}
    runs |= in_launches(call, longest, given.launches)
    if given.fa3 is not None:
        runs[FA3] = fa3_run(call, longest, given.fa3)
    timings = time_in_turn(
        [Contender(who, run, spoil) for who, run in runs.items()],
        device=call.q.device,
        repeats=given.repeats,
        check=lambda who, result: found.update({who: result.float()}),
    )
    peer, difference = found.pop(FA3, None), None
    right = all(bool(each.isfinite().all()) for each in found.values())
    if peer is not None:
        apart = [float((each - peer).norm() / peer.norm()) for each in found.values()]
        difference = apart[0]
        right &= max(apart) <= TOLERANCE[LAYERS[name].of_8_bits]
    if number % CHECKED == 0:
        judge = PartJudge(*call[:3], scores=FEWEST_HEADS, **call.keywords())
        right &= all(judge.check(each.bfloat16()).ok for each in found.values())
    us = {who: 1e3 * timing.median_ms for who, timing in timings.items()}
    sizes = (len(step.keys), sum(step.queries), sum(step.keys))
    return Row(name, number, *sizes, us=us, difference=difference, right=right)


def summary(rows: Sequence[Row]) -> list[str]:
    """A line for each layer."""
    lines = []
    for name in dict.fromkeys(row.layer for row in rows):
        some = [row for row in rows if row.layer == name]
        ratios = [row.us[FA3] / row.us[OURS] for row in some if FA3 in row.us]
        words = f"{name}: {sum(row.right for row in some)} of {len(some)} right"
        if ratios:
            most = max(row.difference or 0.0 for row in some)
            words += (
                f", {statistics.geometric_mean(ratios):.3f} times as fast as FA3"
                f" (least {min(ratios):.3f}, {sum(ratio < 0.97 for ratio in ratios)} below 0.97),"
                f" outputs at most {most:.1e} apart"
            )
        gains = [row.us[ONE] / row.us[TWO] for row in some if {ONE, TWO} <= row.us.keys()]
        if gains:
            words += (
                f"; two launches of {len(gains)} steps {statistics.geometric_mean(gains):.3f} times"
                f" as fast as one (least {min(gains):.3f}, most {max(gains):.3f})"
            )
        lines.append(words)
    return lines


def main() -> None:
    """Replay the steps and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    parser.add_argument("--engine", choices=ENGINES, default="vllm")
    parser.add_argument("--fa3", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--launches",
        choices=LAUNCHES,
        help="also time steps with prompts with one launch or with two, whatever the rule chooses",
    )
    given = parser.parse_args()
    device = torch.device("cuda", torch.cuda.current_device())
    page, steps = read_steps(given.engine)
    pages = 1 + max(max(own) for step in steps for own in step.pages)
    rows: list[Row] = []
    for name, layer in LAYERS.items():
        cache = laid_out(given.engine, cache_of(layer, pages, page, device))
        for number, step in enumerate(steps):
            rows.append(measure(name, number, step, call_of(step, layer, cache), given))
        print(summary([row for row in rows if row.layer == name])[0], flush=True)
    facts: dict[str, Any] = describe(device) | {"repeats": given.repeats, "page": page}
    facts["engine"] = read_record(given.engine)["engine"]
    write_record(given.file, facts | {"rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
