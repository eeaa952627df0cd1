# SPDX-License-Identifier: Apache-2.0
"""The Hopper family against the oracle on an sm_90 GPU: outputs start as NaN, lse is checked."""

from __future__ import annotations

from itertools import islice, product
from math import inf, nan

import pytest
import torch
from torch import Tensor

from flash_attention import attention, forward
from flash_attention.arch import ARCHES
from flash_attention.call.features import CAUSAL, PLAIN
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig, TileOrder
from flash_attention.launch.emulate import emulate
from flash_attention.reference.judge import Judge, check_lse, generate_qkv, generate_qkvo
from flash_attention.reference.oracle import oracle
from flash_attention_workbench.commands.precompile import Job, precompile
from flash_attention_workbench.cores import usable_cores
from tests.hopper_configs import hopper_ladder, sample_hopper_configs, selected

pytestmark = pytest.mark.gpu("sm_90")

LADDER = [
    (config, causal, f"{dtype.name}-{d_head}-{'causal' if causal else 'full'}-{rung.number}")
    for dtype in DType
    for d_head in (64, 128)
    for causal in (False, True)
    for rung, config in hopper_ladder(dtype, d_head)
]
SELECTED = [*selected(DType.BF16), *selected(DType.FP16, (4096,))]
RANDOM = [
    (config, number % 2 == 1)
    for number, config in enumerate(islice(sample_hopper_configs(90), 100))
]
LENGTHS = (1, 63, 64, 65, 127, 129, 1000, 4097)
DYNAMIC = next(c for c, causal in SELECTED if causal and c.d_head == 128)
STALE_MAX = [hopper_ladder(dtype, 64)[-1][1] for dtype in DType]

rungs = pytest.mark.parametrize(
    ("config", "causal"), [pytest.param(config, causal, id=name) for config, causal, name in LADDER]
)
selected_ones = pytest.mark.parametrize(
    ("config", "causal"),
    [
        pytest.param(c, causal, id=f"{c.kernel_name()}{'_causal' * causal}")
        for c, causal in SELECTED
    ],
)


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    """Compiles what the tests run, on all cores."""
    everything = {*((c, causal) for c, causal, _ in LADDER), *SELECTED, *RANDOM}
    jobs = [
        Job(config, ARCHES["sm_90"], CAUSAL if causal else PLAIN) for config, causal in everything
    ]
    fates = {outcome.fate for outcome in precompile(jobs, usable_cores())}
    assert fates <= {"compiled", "from cache"}


def check_right(
    config: HopperForwardKernelConfig,
    qkv: tuple[Tensor, Tensor, Tensor],
    causal: bool,
    what: str = "",
) -> tuple[Tensor, Tensor]:
    """Output and lse of a launch; the output is full of NaN before."""
    poisoned = torch.full_like(qkv[0], nan)
    o, lse = forward(config, *qkv, poisoned, causal=causal, return_lse=True)
    assert o is poisoned
    check = Judge(*qkv, causal=causal).check(o)
    assert check.ok, f"{config.short_form()} {what}: {check}"
    lse_check = check_lse(lse, *qkv[:2], causal=causal)
    assert lse_check.ok, f"{config.short_form()} {what}: {lse_check}"
    return o, lse


@rungs
def test_every_rung_is_right_and_thirty_launches_are_bitwise_equal(
    config: HopperForwardKernelConfig, causal: bool
) -> None:
    for seq_q, seq_k, heads, heads_k in ((1024, 1024, 4, 4), (1000, 333, 8, 2), (129, 1000, 4, 1)):
        qkv = generate_qkv(
            *(2, seq_q, heads, config.d_head, config.dtype, "cuda"),
            seq_len_k=seq_k,
            n_heads_k=heads_k,
        )
        o, lse = check_right(config, qkv, causal, f"{seq_q} x {seq_k}")
    for _ in range(30):
        again = torch.full_like(o, nan)
        _, lse_again = forward(config, *qkv, again, causal=causal, return_lse=True)
        assert torch.equal(again, o)
        assert torch.equal(lse_again, lse)


@selected_ones
def test_lengths_around_the_tiles(config: HopperForwardKernelConfig, causal: bool) -> None:
    for seq_q, seq_k in product(LENGTHS, repeat=2):
        qkv = generate_qkv(
            *(2, seq_q, 2, config.d_head, config.dtype, "cuda", seq_q),
            seq_len_k=seq_k,
            n_heads_k=1,
        )
        check_right(config, qkv, causal, f"{seq_q} x {seq_k}")


@selected_ones
@pytest.mark.parametrize(("heads", "heads_k"), [(32, 8), (8, 1)])
def test_heads_that_share_keys(
    heads: int, heads_k: int, config: HopperForwardKernelConfig, causal: bool
) -> None:
    qkv = generate_qkv(
        *(3, 777, heads, config.d_head, config.dtype, "cuda"), seq_len_k=1111, n_heads_k=heads_k
    )
    check_right(config, qkv, causal)


@selected_ones
def test_a_problem_that_fills_the_device_many_times_over(
    config: HopperForwardKernelConfig, causal: bool
) -> None:
    qkv = generate_qkv(8, 2048, 2048 // config.d_head, config.d_head, config.dtype, "cuda")
    o, _ = check_right(config, qkv, causal)
    for _ in range(30):
        again = torch.full_like(o, nan)
        assert torch.equal(forward(config, *qkv, again, causal=causal), o)


@pytest.mark.parametrize("part", range(4))
def test_a_hundred_random_configs(part: int) -> None:
    for number in range(25 * part, 25 * (part + 1)):
        config, causal = RANDOM[number]
        for seq_q, seq_k, heads, heads_k in ((200 + number, 500 - number, 6, 2), (513, 513, 8, 8)):
            qkv = generate_qkv(
                *(2, seq_q, heads, config.d_head, config.dtype, "cuda", number),
                seq_len_k=seq_k,
                n_heads_k=heads_k,
            )
            check_right(config, qkv, causal, f"number {number}, {seq_q} x {seq_k}")


@pytest.mark.parametrize("d_head", range(8, 257, 8))
def test_every_head_dimension(d_head: int) -> None:
    for seq_q, seq_k, causal in ((257, 257, False), (577, 577, False), (300, 700, True)):
        qkv = generate_qkv(
            *(2, seq_q, 4, d_head, DType.BF16, "cuda", d_head), seq_len_k=seq_k, n_heads_k=2
        )
        poisoned = torch.full_like(qkv[0], nan)
        o, lse = attention(*qkv, out=poisoned, causal=causal, return_lse=True)
        assert Judge(*qkv, causal=causal).check(o).ok, f"{seq_q} x {seq_k}"
        assert check_lse(lse, *qkv[:2], causal=causal).ok, f"{seq_q} x {seq_k}"
    qkv = generate_qkv(1, 2, 8, d_head, DType.BF16, "cuda", seq_len_k=3000, n_heads_k=2)
    assert Judge(*qkv, causal=True).check(attention(*qkv, causal=True)).ok, "split-KV"


@selected_ones
def test_rows_without_keys_and_problems_without_rows(
    config: HopperForwardKernelConfig, causal: bool
) -> None:
    for seq_q, seq_k in ((0, 64), (64, 0), (500, 70)):
        q, k, v, o = generate_qkvo(
            2, seq_q, 4, config.d_head, config.dtype, "cuda", seq_len_k=seq_k
        )
        _, lse = forward(config, q, k, v, o, causal=causal, return_lse=True)
        keyless = seq_q if seq_k == 0 else seq_q - seq_k if causal and seq_k < seq_q else 0
        assert bool((o[:, :keyless] == 0).all())
        assert bool((lse[:, :, :keyless] == -inf).all())
        assert bool(lse[:, :, keyless:].isfinite().all())


@pytest.mark.parametrize("config", STALE_MAX, ids=lambda c: c.dtype.name)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_scores_that_are_large_or_grow(config: HopperForwardKernelConfig, causal: bool) -> None:
    q, k, v = generate_qkv(2, 1000, 4, 64, config.dtype, "cuda")
    growth = torch.linspace(1, 30, 1000, device="cuda")[:, None, None].to(k.dtype)
    check_right(config, (q * 300, k, v), causal, "large")
    check_right(config, (q, k * growth, v), causal, "towards the last key")
    check_right(config, (q, k * growth.flip(0), v), causal, "towards the first key")


@pytest.mark.parametrize("config", STALE_MAX, ids=lambda c: c.dtype.name)
def test_nan_is_where_the_reference_has_it(config: HopperForwardKernelConfig) -> None:
    spoiled = [*product((0, 1), (nan, inf, -inf), (100, 990))]
    q, k, v = generate_qkv(1, 1000, len(spoiled), 64, config.dtype, "cuda")
    for head, (tensor, value, key) in enumerate(spoiled):
        (k, v)[tensor][0, key, head, 5] = value
    o, exact = forward(config, q, k, v), oracle(q, k, v)
    assert torch.equal(o.isnan(), exact.isnan())
    assert torch.equal(o.isinf(), exact.isinf())
    finite = exact.isfinite()
    assert float((o[finite] - exact[finite]).abs().max()) < 0.01


def test_views_of_one_fused_tensor_and_strided_outputs() -> None:
    fused = torch.randn(2, 777, 8, 128, device="cuda").to(torch.bfloat16)
    q, k, v = fused.split([4, 2, 2], dim=2)
    o, _ = check_right(DYNAMIC, (q, k, v), causal=True)
    room = torch.full((2, 900, 6, 128), nan, dtype=q.dtype, device="cuda")
    inside = room[:, 50:827, 1:5]
    forward(DYNAMIC, q, k, v, inside, causal=True)
    assert torch.equal(inside, o)
    assert int(room.isnan().logical_not().sum()) == inside.numel()


def test_streams_do_not_share_the_counter_of_tiles() -> None:
    assert DYNAMIC.tile_order is TileOrder.DYNAMIC
    problems = [
        generate_qkv(4, 500 + 100 * i, 16, 128, DYNAMIC.dtype, "cuda", seed=i) for i in range(4)
    ]
    alone = [forward(DYNAMIC, *qkv, causal=True) for qkv in problems]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in problems]
    outputs: list[list[Tensor]] = [[] for _ in problems]
    for _ in range(10):
        for stream, qkv, seen in zip(streams, problems, outputs, strict=True):
            with torch.cuda.stream(stream):
                seen.append(forward(DYNAMIC, *qkv, torch.full_like(qkv[0], nan), causal=True))
    torch.cuda.synchronize()
    for expected, seen in zip(alone, outputs, strict=True):
        assert all(torch.equal(output, expected) for output in seen)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_a_graph_is_captured_once_and_replayed_with_new_values(causal: bool) -> None:
    config = next(c for c, mask in SELECTED if mask == causal and c.d_head == 128)
    q, k, v, o = generate_qkvo(2, 1000, 8, 128, config.dtype, "cuda", n_heads_k=2)
    forward(config, q, k, v, o, causal=causal)  # compiles, encodes the maps
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first, lse = forward(config, q, k, v, o, causal=causal, return_lse=True)
        second = forward(config, q, k, v, causal=causal)
    for seed in (1, 2):
        fresh = generate_qkv(2, 1000, 8, 128, config.dtype, "cuda", seed, n_heads_k=2)
        for tensor, values in zip((q, k, v), fresh, strict=True):
            tensor.copy_(values)
        o.fill_(nan)
        second.fill_(nan)
        graph.replay()
        torch.cuda.synchronize()
        assert Judge(q, k, v, causal=causal).check(first).ok
        assert check_lse(lse, q, k, causal=causal).ok
        assert torch.equal(first, second)
        assert torch.equal(forward(config, q, k, v, causal=causal), first)


@pytest.mark.parametrize("config", [*STALE_MAX, DYNAMIC], ids=lambda c: c.kernel_name())
def test_the_emulator_agrees_but_for_single_roundings(config: HopperForwardKernelConfig) -> None:
    q, k, v = generate_qkv(1, 200, 2, config.d_head, config.dtype, seq_len_k=300, n_heads_k=1)
    emulated = emulate(config, q, k, v, causal=True, return_lse=True)
    o, lse = forward(config, q.cuda(), k.cuda(), v.cuda(), causal=True, return_lse=True)
    assert float((emulated.output == o.cpu()).float().mean()) > 0.95
    step = torch.finfo(o.dtype).eps
    assert torch.allclose(emulated.output, o.cpu(), rtol=2 * step, atol=step / 4)
    assert emulated.lse is not None
    assert torch.allclose(emulated.lse, lse.cpu(), rtol=1e-6, atol=1e-6)
