# SPDX-License-Identifier: Apache-2.0
"""Hopper kernels where softmax is hard: large and growing scores, infinities, NaN."""

from __future__ import annotations

from itertools import product
from math import inf, nan

import pytest
import torch
from torch import Tensor

from flash_attention.kernel_configs import DType, HopperForwardKernelConfig
from flash_attention.launch.emulate import emulate
from flash_attention.launch.emulation import Emulation
from flash_attention.reference.judge import Judge, check_lse, generate_qkv
from flash_attention.reference.oracle import oracle, oracle_lse
from tests.gate import in_turn
from tests.hopper_configs import hopper_ladder

SEQ, HEADS = 300, 2  # three key blocks, of which the last is masked
BY_NAME = {
    (dtype, rung.name): config for dtype in DType for rung, config in hopper_ladder(dtype, 64)
}
STALE_MAX = [BY_NAME[dtype, "prefetched queries"] for dtype in DType]
KINDS = [
    *(BY_NAME[DType.FP16, name] for name in ("wgmma", "two stages", "lazy rescale")),
    *STALE_MAX,
]
MASKED_KEY, OPEN_KEY = 290, 100


def name(config: HopperForwardKernelConfig) -> str:
    return config.kernel_name()


def run_right(
    config: HopperForwardKernelConfig, q: Tensor, k: Tensor, v: Tensor, causal: bool = False
) -> Emulation:
    seen = emulate(config, q, k, v, causal=causal, return_lse=True)
    assert list(map(str, seen.findings)) == []
    check = Judge(q, k, v, causal=causal).check(seen.output)
    assert check.ok, str(check)
    assert seen.lse is not None
    lse = check_lse(seen.lse, q, k, causal=causal)
    assert lse.ok, str(lse)
    return seen


def scores_computed_again(seen: Emulation) -> int:
    """Warp products by mma.sync: the ones of wgmma are never repeated."""
    counts = seen.counters.instructions.items()
    return sum(n for opcode, n in counts if opcode.startswith("mma.sync"))


@pytest.mark.parametrize(
    ("config", "causal"), [*((config, False) for config in KINDS), (STALE_MAX[0], True)]
)
def test_large_scores(config: HopperForwardKernelConfig, causal: bool) -> None:
    q, k, v = generate_qkv(1, SEQ, HEADS, 64, config.dtype)
    seen = run_right(config, q * 300, k, v, causal)
    assert (scores_computed_again(seen) > 0) == config.stale_max


@pytest.mark.parametrize(
    ("config", "towards"), in_turn(KINDS, ["first key", "last key"], id_of=name)
)
def test_scores_that_grow_from_key_to_key(config: HopperForwardKernelConfig, towards: str) -> None:
    q, k, v = generate_qkv(1, SEQ, HEADS, 64, config.dtype)
    growth = torch.linspace(1, 30, SEQ)[:, None, None].to(k.dtype)
    # Blocks are visited from the last key to the first.
    seen = run_right(config, q, k * (growth.flip(0) if towards == "first key" else growth), v)
    if config.stale_max and towards == "first key":
        assert scores_computed_again(seen) > 0


@pytest.mark.parametrize("config", STALE_MAX, ids=name)
def test_ordinary_scores_are_never_computed_again(config: HopperForwardKernelConfig) -> None:
    q, k, v = generate_qkv(1, SEQ, HEADS, 64, config.dtype)
    assert scores_computed_again(run_right(config, q, k, v)) == 0


@pytest.mark.parametrize("config", STALE_MAX, ids=name)
def test_the_weights_may_grow_as_large_as_their_type_allows_and_no_larger(
    config: HopperForwardKernelConfig,
) -> None:
    """One key of an open block stands out by a power of two, around what the row sums may be."""
    again = {}
    for exponent in (4, 12, 20, 36, 60):
        q, k, v = generate_qkv(1, 256, 1, 64, config.dtype)
        q[..., 1:] = 0
        q[..., 0] = 1
        k.zero_()
        k[:, 3, :, 0] = exponent
        seen = emulate(config, q, k, v, softmax_scale=0.6931471805599453)
        exact = oracle(q, k, v, softmax_scale=0.6931471805599453)
        assert float((seen.output - exact).abs().max()) < 0.02
        again[exponent] = scores_computed_again(seen) > 0
    largest = {DType.FP16: 15, DType.BF16: 40}[config.dtype]
    assert again == {exponent: exponent > largest for exponent in again}


@pytest.mark.parametrize("config", KINDS, ids=name)
def test_nan_is_where_the_reference_has_it(config: HopperForwardKernelConfig) -> None:
    """One value of k or v is not finite, another one in every head."""
    spoiled = [*product((0, 1), (nan, inf, -inf), (MASKED_KEY, OPEN_KEY))]
    q, k, v = generate_qkv(1, SEQ, len(spoiled), 64, config.dtype)
    for head, (tensor, value, key) in enumerate(spoiled):
        (k, v)[tensor][0, key, head, 5] = value
    seen = emulate(config, q, k, v, return_lse=True)
    exact = oracle(q, k, v)
    assert seen.findings == ()
    assert torch.equal(seen.output.isnan(), exact.isnan())
    assert torch.equal(seen.output.isposinf(), exact.isposinf())
    assert torch.equal(seen.output.isneginf(), exact.isneginf())
    finite = exact.isfinite()
    assert float((seen.output[finite] - exact[finite]).abs().max()) < 0.01
    assert seen.lse is not None
    assert torch.equal(seen.lse.isfinite(), oracle_lse(q, k).isfinite())


@pytest.mark.parametrize("config", KINDS, ids=name)
def test_blocks_of_scores_that_are_all_minus_infinity_weigh_nothing(
    config: HopperForwardKernelConfig,
) -> None:
    q, k, v = generate_qkv(1, SEQ, HEADS, 64, config.dtype)
    q[..., 5] = -q[..., 5].abs() - 0.1
    k[:, 130:, :, 5] = inf
    run_right(config, q, k, v)


@pytest.mark.parametrize("value", [nan, inf])
def test_what_a_causal_mask_hides_in_k_is_not_seen(value: float) -> None:
    config = BY_NAME[DType.FP16, "prefetched queries"]
    q, k, v = generate_qkv(1, SEQ, HEADS, 64, config.dtype)
    k[0, 200, 0] = value
    seen = emulate(config, q, k, v, causal=True)
    exact = oracle(q, k, v, causal=True)
    assert not bool(seen.output[:, :200].isnan().any())
    assert torch.equal(seen.output.isnan(), exact.isnan())
