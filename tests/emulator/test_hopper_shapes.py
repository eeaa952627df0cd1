# SPDX-License-Identifier: Apache-2.0
"""The selected Hopper kernels at lengths around their tiles, shared heads, strides, no keys."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import islice

import pytest
import torch
from torch import Tensor

import flash_attention
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig, TileOrder
from flash_attention.launch.emulate import emulate
from flash_attention.launch.emulation import Emulation
from flash_attention.reference.judge import Judge, check_lse, generate_qkv
from tests.gate import EXHAUSTIVE, one_in
from tests.hopper_configs import (
    first_of_each_width,
    hopper_ladder,
    sample_hopper_configs,
    selected,
)

Sizes = tuple[int, int, int, int]  # queries, keys, and heads of each

ALWAYS = first_of_each_width(selected(DType.BF16))
SELECTED = [
    pytest.param(
        *(config, causal, place % 3),
        id=f"{config.kernel_name()}{'_causal' * causal}",
        marks=() if (config, causal) in ALWAYS else EXHAUSTIVE,
    )
    for place, (config, causal) in enumerate(selected(DType.BF16))
]
SIZES: tuple[Sizes, ...] = (
    (1, 200, 4, 1),
    (63, 65, 1, 1),
    (64, 64, 8, 2),
    (65, 127, 1, 1),
    (127, 129, 4, 1),
    (129, 63, 2, 1),
    (200, 1, 2, 2),
    (129, 400, 2, 1),  # blocks that every row sees whole
)
CAUSAL = next(c for c, causal in selected(DType.BF16) if causal and c.d_head == 128)
UNIFIED = hopper_ladder(DType.FP16, 64)[0][1]
LAST = hopper_ladder(DType.FP16, 64)[-1][1]


@cache
def problem(d_head: int, causal: bool, sizes: Sizes) -> tuple[tuple[Tensor, Tensor, Tensor], Judge]:
    seq_q, seq_k, heads, heads_k = sizes
    qkv = generate_qkv(
        *(1, seq_q, heads, d_head, DType.BF16, "cpu", seq_q + seq_k),
        seq_len_k=seq_k,
        n_heads_k=heads_k,
    )
    return qkv, Judge(*qkv, causal=causal)


def persistent(d_head: int, consumers: int, keys: int) -> HopperForwardKernelConfig:
    return HopperForwardKernelConfig(
        *(DType.BF16, d_head, consumers, keys, 2),
        tma=True,
        specialised=True,
        ping_pong=True,
        overlap=True,
        tile_order=TileOrder.PERSISTENT,
    )


def run_clean(
    config: HopperForwardKernelConfig,
    qkv: tuple[Tensor, Tensor, Tensor],
    causal: bool,
    judge: Judge | None = None,
    schedule: str = "lockstep",
) -> Emulation:
    """Emulate; output and lse must be right, and nothing may be found."""
    seen = emulate(config, *qkv, causal=causal, return_lse=True, schedule=schedule)
    assert list(map(str, seen.findings)) == []
    check = (judge or Judge(*qkv, causal=causal)).check(seen.output)
    assert check.ok, str(check)
    assert seen.lse is not None
    lse = check_lse(seen.lse, *qkv[:2], causal=causal)
    assert lse.ok, str(lse)
    return seen


@pytest.mark.parametrize(("config", "causal", "third"), SELECTED)
def test_lengths_around_the_tile_and_heads_that_share_keys(
    config: HopperForwardKernelConfig, causal: bool, third: int
) -> None:
    for sizes in SIZES[third::3]:
        qkv, judge = problem(config.d_head, causal, sizes)
        run_clean(config, qkv, causal, judge)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("rows", "consumers"), [(50, 1), (250, 4), (300, 5)])
def test_consumers_without_queries_compute_nothing(
    rows: int, consumers: int, causal: bool, schedule: str
) -> None:
    """Of the 3 or 6 consumers of tiles of 192 rows."""
    config = persistent(80, consumers=3, keys=64)
    qkv, judge = problem(80, causal, (rows, 200, 1, 1))
    every = run_clean(config, qkv, causal, judge, schedule)
    some = run_clean(replace(config, skip_empty=True), qkv, causal, judge, schedule)
    assert torch.equal(every.output, some.output)
    if not causal:  # rows of a causal tile see different keys
        of_a_consumer = 4 * 64 * 256 * 80  # four blocks of 64 keys
        assert every.counters.tensor_operations == -(-rows // 192) * 3 * of_a_consumer
        assert some.counters.tensor_operations == consumers * of_a_consumer


@pytest.mark.parametrize("d_head", one_in(2, [80, 96, 160, 224], 1))
def test_wide_panels_hold_the_same_columns(d_head: int, schedule: str) -> None:
    columns = d_head - 8
    tight = persistent(d_head, consumers=2, keys=48)
    wide = replace(tight, wide_panels=True)
    assert (tight.panel_columns, wide.panel_columns) == (32, 64)
    qkv, judge = problem(columns, True, (130, 150, 2, 1))
    outputs = [run_clean(c, qkv, True, judge, schedule).output for c in (tight, wide)]
    assert torch.equal(*outputs)


@pytest.mark.parametrize("sizes", one_in(2, [(256, 256), (208, 200), (64, 64)], 1))
def test_o_is_the_same_from_registers(sizes: tuple[int, int], schedule: str) -> None:
    """208 columns are six quads of chunks and a half."""
    d_head, columns = sizes
    staged = persistent(d_head, consumers=2, keys=48)
    qkv, judge = problem(columns, True, (130, 150, 2, 1))
    direct = replace(staged, direct_output=True)
    outputs = [run_clean(c, qkv, True, judge, schedule).output for c in (staged, direct)]
    assert torch.equal(*outputs)


@pytest.mark.parametrize("config", [CAUSAL, UNIFIED, LAST], ids=lambda c: c.kernel_name())
def test_a_query_before_the_first_key_gets_zeros(config: HopperForwardKernelConfig) -> None:
    qkv = generate_qkv(2, 200, 2, config.d_head, config.dtype, seq_len_k=70)
    seen = run_clean(config, qkv, causal=True)
    assert seen.lse is not None
    assert torch.equal(seen.output[:, :130], torch.zeros_like(seen.output[:, :130]))
    assert bool((seen.lse[:, :, :130] == -torch.inf).all())
    # The first query that sees one key gets its value.
    assert torch.equal(seen.output[:, 130], qkv[2][:, 0])


@pytest.mark.parametrize("config", [UNIFIED, LAST], ids=lambda c: c.kernel_name())
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_a_scale_of_ones_own(config: HopperForwardKernelConfig, causal: bool) -> None:
    q, k, v = generate_qkv(1, 130, 2, 64, config.dtype)
    seen = emulate(config, q, k, v, causal=causal, softmax_scale=0.5, return_lse=True)
    assert Judge(q, k, v, softmax_scale=0.5, causal=causal).check(seen.output).ok
    assert seen.lse is not None
    assert check_lse(seen.lse, q, k, softmax_scale=0.5, causal=causal).ok


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(0, 64), (3, 0), (0, 0)])
def test_without_a_query_or_a_key_there_is_nothing_to_compute(
    seq_q: int, seq_k: int, causal: bool
) -> None:
    q, k, v = generate_qkv(2, seq_q, 4, 64, DType.FP16, seq_len_k=seq_k, n_heads_k=2)
    seen = emulate(LAST, q, k, v, causal=causal, return_lse=True)
    o, lse = flash_attention.forward(LAST, q, k, v, causal=causal, return_lse=True)
    for output, logarithms in ((seen.output, seen.lse), (o, lse)):
        assert torch.equal(output, torch.zeros_like(q))
        assert logarithms is not None
        assert torch.equal(logarithms, torch.full((2, 4, seq_q), -torch.inf))


def test_forward_on_cpu_tensors_is_the_emulator() -> None:
    q, k, v = generate_qkv(1, 100, 4, 64, DType.FP16, seq_len_k=150, n_heads_k=2)
    o, lse = flash_attention.forward(LAST, q, k, v, causal=True, return_lse=True)
    seen = emulate(LAST, q, k, v, causal=True, return_lse=True)
    assert seen.lse is not None
    assert torch.equal(o, seen.output)
    assert torch.equal(lse, seen.lse)


@pytest.mark.parametrize("config", [CAUSAL, UNIFIED, LAST], ids=lambda c: c.kernel_name())
def test_views_of_one_fused_tensor(config: HopperForwardKernelConfig) -> None:
    seq_len, heads, heads_k, d_head = 150, 4, 2, config.d_head
    generator = torch.Generator().manual_seed(1)
    shape = (2, seq_len, heads + 2 * heads_k, d_head)
    fused = torch.randn(shape, generator=generator).to(config.dtype.to_torch_dtype())
    q, k, v = fused.split([heads, heads_k, heads_k], dim=2)
    strided = run_clean(config, (q, k, v), causal=True)
    dense = run_clean(config, (q.contiguous(), k.contiguous(), v.contiguous()), causal=True)
    assert torch.equal(strided.output, dense.output)
    packed = fused[:, :, :6].unflatten(2, (3, 2)).unbind(2)
    run_clean(config, (packed[0], packed[1], packed[2]), causal=True)


def test_heads_before_rows_and_an_output_of_other_strides() -> None:
    q, k, v = (
        t.transpose(1, 2).contiguous().transpose(1, 2)
        for t in generate_qkv(2, 130, 2, 64, DType.FP16)
    )
    o = torch.full((2, 140, 3, 64), torch.nan, dtype=torch.float16)
    inside = o[:, 5:135, :2]
    seen = emulate(LAST, q, k, v, inside, causal=True)
    assert seen.findings == ()
    assert Judge(q, k, v, causal=True).check(inside).ok
    assert int(o.isnan().logical_not().sum()) == inside.numel()


@pytest.mark.parametrize("number", one_in(2, range(4)))
def test_random_configs(number: int) -> None:
    config = next(islice(sample_hopper_configs(154), number, None))
    causal = number % 2 == 1
    qkv = generate_qkv(
        1, 200, 4, config.d_head, config.dtype, "cpu", number, seq_len_k=330, n_heads_k=2
    )
    run_clean(config, qkv, causal)
