# SPDX-License-Identifier: Apache-2.0
"""Decoding: keys in splits and in pages give what attention is, on the emulator and a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.call.call import Call
from flash_attention.choose.choice import Rule
from flash_attention.families.sm90.forward import splits
from flash_attention.families.sm90.forward.features import Sm90Features, SplitKind
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig, TileOrder
from flash_attention.launch import device as devices
from flash_attention.launch.emulate import emulate
from flash_attention.launch.emulation import Emulation
from flash_attention.launch.plan import Plan
from flash_attention.launch.plans import forget_plans, plan_for
from flash_attention.reference.judge import generate_qkv
from tests.decode_cases import DECODE_CASES, IN_LAUNCHES, DecodeCase, in_pages, shuffled_table
from tests.devices import HOPPER
from tests.feature_cases import Case, MadeCase
from tests.gate import EXHAUSTIVE, in_turn

pytestmark = pytest.mark.slow  # left out of `make quick`

CONFIG = HopperForwardKernelConfig(
    *(DType.BF16, 64, 1, 64, 2),
    tma=True,
    specialised=True,
    overlap=True,
    rescale_threshold=8,
    stale_max=True,
)
PACKED = replace(CONFIG, tile_order=TileOrder.DYNAMIC, group_mib=16)
LARGE = replace(CONFIG, consumers=2, B_c=128, ping_pong=True, narrow_keys=64, prefetch_q=True)
LARGE_PACKED = replace(LARGE, own_output=True, tile_order=TileOrder.DYNAMIC, group_mib=16)


def config_for(call: MadeCase) -> HopperForwardKernelConfig:
    return replace(CONFIG, d_head=call.q.shape[-1], dtype=DType.from_string(str(call.q.dtype)))


def emulated(short: DecodeCase, call: MadeCase, schedule: str = "lockstep") -> Emulation:
    result = emulate(
        config_for(call),
        *short.tensors(call),
        return_lse=True,
        schedule=schedule,
        **short.arguments(call),
    )
    assert list(map(str, result.findings)) == []
    return result


ONE_OR_TWO = {1: 1 << 20, 2: 0}
"""How many rows of partial results the last CTA of a tile may combine, by the launches."""


@pytest.mark.parametrize(("short", "launched"), IN_LAUNCHES)
def test_keys_in_splits_give_what_attention_is(
    short: DecodeCase, launched: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = short.make()
    results = []
    for launches in launched:
        monkeypatch.setattr(splits, "MOST_ROWS_AT_ONCE", ONE_OR_TWO[launches])
        recipe = Plan(short.call(call), config_for(call)).recipe
        assert (
            recipe.num_splits == short.num_splits * recipe.tiles == recipe.steps[0].geometry.grid[0]
        )
        assert len(recipe.steps) == launches
        assert recipe.counters == (recipe.tiles if launches == 1 else 0)
        results.append(emulated(short, call))
        call.assert_right(results[-1].output, results[-1].lse)
    one, *others = results
    for two in others:
        assert torch.equal(one.output, two.output)
        assert one.lse is not None
        assert two.lse is not None
        assert torch.equal(one.lse, two.lse)


WITH_LENGTHS = [short for short in DECODE_CASES if short.case.used]
TILES = [
    pytest.param(
        *(short, ping_pong),
        id=f"{short.name}{'-ping-pong' * ping_pong}",
        marks=() if place % 2 and ping_pong == place // 2 % 2 else EXHAUSTIVE,
    )
    for place, short in enumerate(WITH_LENGTHS)
    for ping_pong in (False, True)
]


@pytest.mark.parametrize(("short", "ping_pong"), TILES)
def test_a_given_config_without_splits_takes_lengths_and_pages(
    short: DecodeCase, ping_pong: bool
) -> None:
    call = short.make()
    config = config_for(call)
    if ping_pong:
        config = replace(config, consumers=2, ping_pong=True)
    arguments = short.arguments(call) | {"split_keys": None}
    result = emulate(config, *short.tensors(call), return_lse=True, **arguments)
    assert list(map(str, result.findings)) == []
    call.assert_right(result.output, result.lse)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("short", DECODE_CASES, ids=lambda short: short.name)
def test_torch_computes_the_same_on_the_cpu(short: DecodeCase) -> None:
    call = short.make()
    out, lse = attention(*short.tensors(call), return_lse=True, **short.arguments(call))
    call.assert_right(out, lse)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_both_dtypes_are_combined(dtype: torch.dtype) -> None:
    short = DECODE_CASES[1]
    call = short.make(dtype=dtype)
    out = attention(*short.tensors(call), config=config_for(call), **short.arguments(call))
    assert out.dtype == dtype
    call.assert_right(out)


@pytest.mark.parametrize(
    ("asked", "schedule"),
    in_turn([("splits without keys", 1), ("pages of 16", 2)], ["depth-first", "random"]),
)
def test_the_order_of_the_warps_does_not_matter(
    asked: tuple[str, int], schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, launches = asked
    monkeypatch.setattr(splits, "MOST_ROWS_AT_ONCE", ONE_OR_TWO[launches])
    (short,) = (short for short in DECODE_CASES if short.name == name)
    call = short.make()
    first, second = (emulated(short, call, order) for order in ("lockstep", schedule))
    assert torch.equal(first.output, second.output)
    assert first.lse is not None
    assert second.lse is not None
    assert torch.equal(first.lse, second.lse)


def test_consumers_count_their_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "MOST_ROWS_AT_ONCE", ONE_OR_TWO[1])
    call = Case("", 100, 300, heads=2, heads_k=1, causal=True).make()
    recipe = Plan(Call(call.q, call.k, call.v, causal=True, split_keys=128), LARGE).recipe
    assert (recipe.tiles, recipe.counters, len(recipe.steps)) == (2, 4, 1)
    result = emulate(LARGE, call.q, call.k, call.v, split_keys=128, **call.arguments)
    assert list(map(str, result.findings)) == []
    call.assert_right(result.output)


def test_another_config_may_be_asked_to_split() -> None:
    call = Case("", 70, 300, batch=2, used=(300, 129), causal=True).make()
    result = emulate(LARGE, call.q, call.k, call.v, split_keys=128, **call.arguments)
    assert list(map(str, result.findings)) == []
    call.assert_right(result.output)


@pytest.mark.parametrize("window", [None, (50, 20)])
def test_pages_need_no_splits_and_serve_packed_queries(window: tuple[int, int] | None) -> None:
    case = Case("", (100, 1, 130), 192, batch=3, used=(150, 0, 77), window=window)
    call = case.make()
    table = shuffled_table(3, 12)
    pages = (in_pages(t, table, 16) for t in (call.k, call.v))
    result = emulate(LARGE_PACKED, call.q, *pages, block_table=table, **call.arguments)
    assert list(map(str, result.findings)) == []
    call.assert_right(result.output)


def test_strides_of_the_output_and_the_table_are_followed() -> None:
    short = next(short for short in DECODE_CASES if short.name == "pages of 64")
    call = short.make()
    arguments = short.arguments(call)
    room = torch.full((3, 1, 10, 80), 7.0, dtype=torch.bfloat16)
    out = room[:, :, 1:9, 8:72]
    wide = torch.full((3, 9), -1, dtype=torch.int32)
    wide[:, 2:7] = arguments["block_table"]
    arguments["block_table"] = wide[:, 2:7]
    assert attention(*short.tensors(call), out=out, config=CONFIG, **arguments) is out
    call.assert_right(out)
    out.fill_(7.0)
    assert bool((room == 7.0).all())


@pytest.mark.parametrize("page_keys", [0, 16])
def test_short_queries_are_split_unasked(page_keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "EMULATED_SMS", 12)
    used = (700, 513, 0)
    case = Case("", 2, 720, batch=3, used=used, heads=6, heads_k=2, causal=True, sinks=True)
    call = case.make()
    asked = call.call(return_lse=True)
    if page_keys:
        table = shuffled_table(3, 720 // page_keys)
        k, v = (in_pages(t, table, page_keys) for t in (call.k, call.v))
        asked = asked._replace(k=k, v=v, block_table=table)
    plan = Plan(asked)
    features = plan.recipe.features
    assert isinstance(features, Sm90Features)
    assert (features.splits, features.heads_together) == (SplitKind.ON_DEVICE, 3)
    assert plan.choice.rule is Rule.DECODE
    assert plan.recipe.num_splits == plan.recipe.steps[0].geometry.grid[0] == 24
    assert len(plan.recipe.steps) == 1
    result = plan.run(asked)
    assert isinstance(result, tuple)
    call.assert_right(*result)


@pytest.mark.parametrize(
    ("config", "device"),
    [
        pytest.param(CONFIG, "cpu", id="given-cpu"),
        pytest.param(CONFIG, "cuda", id="given-cuda", marks=HOPPER),
        pytest.param(None, "cuda", id="selected-cuda", marks=HOPPER),
    ],
)
def test_fixed_splits_make_an_entry_independent_of_its_batch(
    config: HopperForwardKernelConfig | None, device: str
) -> None:
    """An entry alone, in a batch, and in a larger cache, bit for bit."""
    used = (300, 129, 64, 1, 200)
    call = Case("", 3, 320, batch=len(used), used=used, heads=8, causal=True).make(device)
    arguments: dict[str, Any] = {"causal": True, "config": config, "split_keys": 128}

    def run(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return attention(q, k, v, seqused_k=lengths, return_lse=True, **arguments)

    out, lse = run(call.q, call.k, call.v, call.keywords["seqused_k"])
    call.assert_right(out, lse)
    for entry, length in enumerate(used):
        there = -(-length // 64) * 64
        q, k, v = (t[entry : entry + 1] for t in (call.q, call.k[:, :there], call.v[:, :there]))
        lengths = torch.tensor([length], dtype=torch.int32, device=device)
        single, single_lse = run(q, k, v, lengths)
        assert torch.equal(single[0], out[entry])
        assert torch.equal(single_lse[0], lse[entry])


@pytest.mark.parametrize("sinks", [False, True])
def test_without_any_key_the_lse_is_the_sink(sinks: bool) -> None:
    q, k, v = generate_qkv(2, 1, 4, 64, DType.BF16, seq_len_k=128, n_heads_k=2)
    given = torch.tensor([1.0, -2.0, 0.5, 3.0]) if sinks else None
    nothing = torch.zeros(2, dtype=torch.int32)
    out, lse = attention(
        *(q, k, v),
        seqused_k=nothing,
        sinks=given,
        split_keys=64,
        return_lse=True,
        config=CONFIG,
    )
    assert bool((out == 0).all())
    expected = torch.full((4,), -torch.inf) if given is None else given
    torch.testing.assert_close(lse, expected[None, :, None].expand(2, 4, 1))


@pytest.mark.usefixtures("no_compile")
def test_a_split_plan_packs_its_splits_and_its_maps() -> None:
    q, k, v = generate_qkv(3, 2, 14, 64, DType.BF16, seq_len_k=300, n_heads_k=2)
    call = Call(q, k, v, split_keys=128)
    plan = Plan(call, CONFIG)
    args = plan.bind(call)
    assert (args.key_blocks, args.split_blocks) == (5, 2)
    step = plan.recipe.steps[0]
    assert step.geometry.grid == (3 * 2 * 3, 1, 1)
    assert [step.maps[name].box for name in "qk"] == [(64, 7, 9, 1), (64, 1, 64, 1)]
    assert not plan.recipe.counts_tiles
    table = torch.zeros(3, 8, dtype=torch.int32)[:, :5]
    pages = torch.zeros(4, 16, 2, 64, dtype=torch.bfloat16)
    paged = Call(*(q, pages, pages), seqused_k=torch.zeros(3, dtype=torch.int32), block_table=table)
    plan = Plan(paged, PACKED)
    args = plan.bind(paged)
    assert (args.seq_len_k, args.block_table_stride, args.block_table) == (80, 8, table.data_ptr())
    keys = plan.recipe.steps[0].maps["k"]
    assert (keys.dims, keys.box) == ((64, 2, 16, 4), (64, 1, 16, 1))


def test_compiled_functions_take_pages_and_splits() -> None:
    short = next(short for short in DECODE_CASES if short.name == "pages of 64")
    call = short.make()
    arguments = short.arguments(call)
    torch._dynamo.reset()
    compiled = torch.compile(attention, backend="eager", fullgraph=True)
    out = compiled(*short.tensors(call), **arguments)
    assert torch.equal(out, attention(*short.tensors(call), **arguments))


@pytest.mark.gpu("sm_90")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("short", DECODE_CASES, ids=lambda short: short.name)
def test_every_case_is_right_on_a_gpu(short: DecodeCase, dtype: torch.dtype) -> None:
    call = short.make("cuda", dtype)
    tensors, arguments = short.tensors(call), short.arguments(call)
    for config in (config_for(call), None):
        out, lse = attention(*tensors, return_lse=True, validate=True, config=config, **arguments)
        call.assert_right(out, lse)
        for _ in range(5):
            assert torch.equal(attention(*tensors, config=config, **arguments), out)


@pytest.mark.gpu("sm_90")
@pytest.mark.parametrize("seq_q", [1, 3, 16])
@pytest.mark.parametrize(("batch", "keys"), [(1, 512), (1, 8192), (4, 2048), (12, 700)])
def test_one_launch_gives_the_bits_of_two_on_a_gpu(
    batch: int, keys: int, seq_q: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Case("", seq_q, keys, 128, 128, 32, 8, batch, causal=True).make("cuda")
    results: list[Tensor] = []
    for launches, rows in ONE_OR_TWO.items():
        monkeypatch.setattr(splits, "MOST_ROWS_AT_ONCE", rows)
        forget_plans()
        asked = call.call(return_lse=True)
        assert len(plan_for(asked).recipe.steps) == launches
        out, lse = attention(call.q, call.k, call.v, return_lse=True, **call.arguments)
        call.assert_right(out, lse)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = attention(call.q, call.k, call.v, **call.arguments)
        for _ in range(50):
            captured.fill_(torch.nan)
            graph.replay()
            assert torch.equal(captured, out)
            assert torch.equal(attention(call.q, call.k, call.v, **call.arguments), out)
        results.append(out)
    forget_plans()
    assert torch.equal(*results)


@pytest.mark.gpu("sm_90")
@pytest.mark.parametrize("batch", [1, 3, 70])
def test_split_unasked_they_are_right_on_a_gpu(batch: int) -> None:
    used = tuple(4000 - 57 * n for n in range(batch))
    call = Case("", 1, 4096, 128, 128, 8, 2, batch, used, causal=True).make("cuda")
    out, lse = attention(call.q, call.k, call.v, return_lse=True, **call.arguments)
    call.assert_right(out, lse)
