# SPDX-License-Identifier: Apache-2.0
"""FP8 kernels with a paged KV cache, in the emulator and on a Hopper GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from flash_attention import HopperForwardKernelConfig, HopperFp8KernelConfig, forward
from flash_attention.arch import MEASURED_ARCH
from flash_attention.call.call import Call
from flash_attention.call.features import Features
from flash_attention.call.problem import Problem
from flash_attention.choose.heuristic import select_config
from flash_attention.compile import compile_kernel
from flash_attention.errors import UnsupportedError
from flash_attention.families.registry import unit_of
from flash_attention.families.sm90.fp8.family import SM90_FP8
from flash_attention.launch.emulation import Settings
from flash_attention.launch.plan import Plan
from flash_attention_workbench.mends import NUMBERS
from ptx_emulator import SCHEDULES
from ptx_emulator.report.mends import DEADLOCK
from tests.devices import on_devices, ran
from tests.emulator.edits import Edit
from tests.families.sm90.forward.cases_8_bit import Case
from tests.families.sm90.fp8.cases import assert_right, config
from tests.families.sm90.fp8.transposed_cases import OVERLAPPED_T
from tests.families.sm90.planted import kinds_caught
from tests.gate import EXHAUSTIVE, in_turn

CAUSAL = (("causal", True),)
PACKED = Case(
    seq_k=384,
    heads=2,
    heads_k=1,
    batch=4,
    lengths_q=(1, 0, 130, 70),
    page=64,
    used=(320, 77, 201, 0),
    q_8_bit=True,
    keywords=CAUSAL,
)
PADDED = Case(140, 384, heads=2, heads_k=1, batch=2, page=32, used=(384, 65), q_8_bit=True)
CASES = {
    "pages of 1": replace(PACKED, page=1),
    "pages of 12, d 96 and 48": replace(PACKED, page=12, d=96, d_v=48),
    "pages of 8": replace(PACKED, page=8),
    "pages of 16": replace(PACKED, page=16),
    "pages of 24": replace(PACKED, page=24),
    "pages of 32": replace(PACKED, page=32, heads=4, heads_k=2),
    "pages of 64": PACKED,
    "pages of 128": replace(PACKED, page=128),
    "pages of 256": replace(PACKED, page=256, seq_k=512),
    "padded": PADDED,
    "padded, d 64": replace(PADDED, d=64, page=16, keywords=CAUSAL),
    "padded, d 256": replace(PADDED, d=256, page=16),
    "one factor, d 96 and 48": replace(PADDED, d=96, d_v=48, per_head=False),
    "window": replace(PACKED, keywords=(("window", (60, 3)),)),
    "softcap": replace(PACKED, keywords=(("softcap", 3.0),)),
    "sinks": replace(PACKED, sinks=True),
    "a bound of the keys": replace(PACKED, keywords=(("max_seqlen_k", 320),)),
    "more keys than an accumulator sums": replace(
        *(PACKED,), seq_k=1280, batch=1, lengths_q=(130,), used=(1270,)
    ),
}
LARGE = {
    f"long chunks, pages of {page}, d {d}": Case(
        *(2, 4096, 16, 4, 4, d),
        lengths_q=(1, 700, 0, 1300),
        page=page,
        used=(900, 4001, 0, 2333),
        q_8_bit=True,
        keywords=CAUSAL,
    )
    for page in (1, 4, 16, 32, 64, 128, 256)
    for d in (64, 128, 256)
}


def planned(call: Call) -> Plan:
    """The plan with the config that the heuristic has for a call with enough tiles."""
    chosen = select_config(Problem.of(call), MEASURED_ARCH)
    assert isinstance(chosen, HopperFp8KernelConfig)
    return Plan(call, chosen, arch=None if call.q.is_cuda else MEASURED_ARCH)


def assert_computed_right(call: Call, schedule: str = SCHEDULES[0]) -> None:
    assert_right(call, *ran(planned(call), call, Settings(schedule)))


SELDOM = {  # cases of what others, and the tests below, have
    *("pages of 16", "pages of 32", "pages of 64", "pages of 128", "padded", "softcap"),
    "a bound of the keys",
}


@pytest.mark.parametrize(
    ("name", "device"),
    on_devices(
        (pytest.param(n, id=n, marks=EXHAUSTIVE if n in SELDOM else ()) for n in CASES), LARGE
    ),
)
def test_paged_caches_are_right(name: str, device: str) -> None:
    call = (CASES | LARGE)[name].call(device)
    plan = Plan(call) if name in LARGE else planned(call)
    assert_right(call, *ran(plan, call, Settings(SCHEDULES[len(name) % len(SCHEDULES)])))


@pytest.mark.exhaustive
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_they_are_right_in_every_order_of_warps(schedule: str) -> None:
    assert_computed_right(CASES["pages of 16"].call(), schedule)


def test_factors_may_have_a_stride_of_zero() -> None:
    call = replace(PACKED, heads_k=2).call()
    factor = torch.full((1, 1), 0.75).expand(4, 2)
    assert factor.stride() == (0, 0)
    assert_computed_right(call._replace(q_descale=factor, k_descale=factor, v_descale=factor))


def test_k_and_v_of_one_tensor_are_read_in_place() -> None:
    """An engine stores (pages, heads_k, page, 2 d), and transposes and splits it."""
    call = replace(PACKED, heads=4, heads_k=2).call()
    both = torch.cat([call.k, call.v], dim=-1).transpose(1, 2).contiguous().transpose(1, 2)
    k, v = both.split(128, dim=-1)
    assert not k.is_contiguous()
    assert_computed_right(call._replace(k=k, v=v))


def test_entries_beyond_the_last_key_are_not_read() -> None:
    call = PACKED.call()
    assert call.block_table is not None
    table = call.block_table.clone()
    for entry, used in enumerate(PACKED.used):
        table[entry, -(-used // PACKED.page) :] = 1 << 30
    assert_computed_right(call._replace(block_table=table))


@pytest.mark.parametrize("page", [-7, 1 << 30])
def test_pages_that_do_not_exist_have_zeros(page: int) -> None:
    call = PACKED.call()
    assert call.block_table is not None
    zeros = torch.zeros_like(call.k[:1])
    k, v = (torch.cat([t, zeros]) for t in (call.k, call.v))
    there, missing = call.block_table.clone(), call.block_table.clone()
    there[2, 1], missing[2, 1] = call.k.shape[0], page
    given = call._replace(block_table=missing)
    assert_right(call._replace(k=k, v=v, block_table=there), *ran(planned(given), given))


PAGES, PRODUCER = "sm90/fp8/pages.cuh", "sm90/fp8/producer.cuh"
EXPECTED = "expect(full, KTile::kBytes"
MUTATIONS = {
    "a box of K is the first of its page": (
        NUMBERS,
        Edit(PAGES, "(block * Config::kBC + row) % PageKeys", "0"),
    ),
    "the pages of the block before": (
        NUMBERS,
        Edit(PAGES, "ahead_.read(block - 1,", "ahead_.read(block,"),
    ),
    "all boxes land in the first rows": (
        "race",
        Edit(PAGES, "to.panel(p) + row * KTile::kRowBytes", "to.panel(p)"),
    ),
    "a row of V is the first of its page": (
        NUMBERS,
        Edit(PAGES, " + key % PageKeys * stride_.seq"),
    ),
    "V of the first page": (NUMBERS, Edit(PAGES, "page * stride_.batch", "0")),
    "the producer does not wait until K was read": (
        "race",
        Edit(PRODUCER, "smem_.k_pipeline().acquire(ring_);"),
    ),
    "too many bytes of K are expected": (
        DEADLOCK,
        Edit(PRODUCER, EXPECTED, f"{EXPECTED} + 16"),
    ),
}
FIRST_OF_KIND = {caught_by: name for name, (caught_by, _) in reversed(MUTATIONS.items())}.values()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FIRST_OF_KIND else pytest.mark.mutations)
        for name in MUTATIONS
    ],
)
def test_mistakes_are_found(name: str, tmp_path: Path) -> None:
    caught_by, edit = MUTATIONS[name]
    call = CASES["pages of 24"].call()
    right = partial(assert_right, call)
    assert caught_by in kinds_caught(edit, tmp_path, planned(call), call, right)


def chunk(queries: int = 2048, **changes: Any) -> Problem:
    """The problem of a chunk of queries over an 8-bit cache, as an engine has it."""
    base = Problem(
        *(1, queries, 8192, 32, 8, 128, 128, torch.float8_e4m3fn, 128**-0.5),
        causal=True,
        total_q=queries,
        seqused_k=True,
        page_keys=64,
        pages=200,
        table_stride=128,
        out_dtype=torch.bfloat16,
    )
    return replace(base, **changes)


@pytest.mark.parametrize("page", [1, 8, 16, 20, 32, 64, 128, 256])
def test_chunks_have_products_of_8_bits(page: int) -> None:
    chosen = select_config(chunk(page_keys=page), MEASURED_ARCH)
    assert isinstance(chosen, HopperFp8KernelConfig)


@pytest.mark.parametrize(
    "other",
    [
        chunk(16),
        replace(chunk(16), total_q=None),
        chunk(block_descales=True),
        chunk(batch=64, seq_k=32768),
    ],
    ids=["decoding", "decoding, padded", "blocks", "much memory"],
)
def test_other_calls_are_converted(other: Problem) -> None:
    chosen = select_config(other, MEASURED_ARCH)
    assert isinstance(chosen, HopperForwardKernelConfig)
    assert chosen.kv_8_bit


def test_a_plan_of_a_chunk_transposes_pages_and_loads_boxes_of_them() -> None:
    call = replace(PACKED, page=16).call()
    plan = planned(call)
    transpose, main = plan.recipe.steps
    assert transpose.unit.name == "transpose_d128_tensor_sums_per_batch_page_16"
    assert main.maps["k"].box == (128, 1, 16, 1)
    assert plan.recipe.scratch == {"v_tiles": 4 * 384 * 136}


def test_configs_that_cannot_read_pages_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="block_table is asked for, and a v in pages has"):
        SM90_FP8.resolve(OVERLAPPED_T, Features(page_keys=64))
    static = config("(BF16, 128, 2, 64, 2): persistent")
    with pytest.raises(UnsupportedError, match=r"cu_seqlens_q is given, .* one with TileOrder"):
        Plan(PACKED.call(), static)


@pytest.mark.slow
@pytest.mark.parametrize(("d", "page"), in_turn([128, 256], [16, 64]))
def test_kernels_do_not_spill(d: int, page: int) -> None:
    problem = chunk(d_head=d, d_v=d, page_keys=page)
    unit = unit_of(select_config(problem, MEASURED_ARCH), problem.features)
    resources = compile_kernel(unit.source, arch=unit.target, name=unit.name).resources
    assert (resources.spill_store_bytes, resources.notes) == (0, ())


@pytest.mark.gpu("sm_90")
def test_a_graph_replays_other_lengths_and_pages() -> None:
    case = replace(PACKED, heads=32, heads_k=8, seq_k=2048, used=(2048, 77, 1001, 130))
    call = case.call("cuda")
    other = replace(case, used=(1, 2048, 555, 2000)).call("cuda")
    chosen = select_config(Problem.of(call), MEASURED_ARCH)
    out = torch.empty(call.q.shape, dtype=torch.bfloat16, device="cuda")
    forward(chosen, *call[:3], out, **call.keywords())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward(chosen, *call[:3], out, **call.keywords())
    for given in (other, case.call("cuda")):
        captured = (*call[:3], call.seqused_k, call.block_table)
        new = (*given[:3], given.seqused_k, given.block_table)
        for there, tensor in zip(captured, new, strict=True):
            assert there is not None
            assert tensor is not None
            there.copy_(tensor)
        graph.replay()
        assert_right(call, out, None)
