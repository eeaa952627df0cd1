# SPDX-License-Identifier: Apache-2.0
"""The oracle against torch's own attention, and what the tolerance rule lets through."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flash_attention import testing
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType
from flash_attention.testing import (
    Check,
    attention_16bit,
    check_output,
    generate_qkv,
    generate_qkvo,
    oracle,
    rounding_step,
)

DTYPES = [torch.float16, torch.bfloat16]
SHAPE = (2, 64, 4, 32)


def torch_attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    """torch's SDPA, which wants the heads before the sequence."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2)


@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("seq_k", [64, 48])
def test_the_oracle_is_attention_in_float64(scale: float | None, seq_k: int) -> None:
    q, k, v = generate_qkv(*SHAPE, torch.float16)
    k, v = k[:, :seq_k], v[:, :seq_k]
    expected = torch_attention(q.double(), k.double(), v.double(), scale)
    result = oracle(q, k, v, scale)
    assert result.dtype == torch.float64
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scores_bytes", [1, 64 * 8, 5 * 64 * 8, 3 * 64 * 64 * 8])
def test_chunks_do_not_change_the_oracle(
    scores_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = generate_qkv(*SHAPE, torch.bfloat16)
    whole = oracle(q, k, v)
    monkeypatch.setattr(testing, "SCORES_BYTES", scores_bytes)
    torch.testing.assert_close(oracle(q, k, v), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_16bit_formula_rounds_every_step(dtype: torch.dtype) -> None:
    q, k, v = generate_qkv(1, 64, 1, 32, dtype)
    q2, k2, v2 = (t[0, :, 0] for t in (q, k, v))
    scaled = (k2.float() * 32**-0.5).to(dtype)
    scores = (q2.float() @ scaled.float().T).to(dtype)
    weights = torch.softmax(scores.float(), -1).to(dtype)
    expected = (weights.float() @ v2.float()).to(dtype)
    result = attention_16bit(q, k, v)
    assert result.dtype == dtype
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(result[0, :, 0], expected, rtol=2 * step, atol=step)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rounding_step_is_that_of_the_dtype(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    step = rounding_step(torch.linspace(-1, 1, 999).to(dtype))
    assert eps / 2 <= step <= 2 * eps


def test_inputs_follow_the_seed_the_dtype_and_the_shape() -> None:
    q, k, v = generate_qkv(*SHAPE, DType.BF16, "cpu", 3)
    assert q.dtype == k.dtype == v.dtype == torch.bfloat16
    assert list(q.shape) == list(SHAPE)
    assert not torch.equal(q, k)
    assert not torch.equal(k, v)
    assert all(map(torch.equal, generate_qkv(*SHAPE, torch.bfloat16, "cpu", 3), (q, k, v)))
    assert not torch.equal(generate_qkv(*SHAPE, torch.bfloat16, "cpu", 4)[0], q)
    assert 0.9 < float(q.float().std()) < 1.1


def test_the_output_to_fill_is_poisoned() -> None:
    q, k, v, o = generate_qkvo(*SHAPE, torch.float16, "cpu", 1)
    assert bool(o.isnan().all())
    assert all(map(torch.equal, generate_qkv(*SHAPE, torch.float16, "cpu", 1), (q, k, v)))
    assert not check_output(o, q, k, v).ok


def rounded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The best output there is in 16 bits."""
    return oracle(q, k, v).to(q.dtype)


@given(
    st.sampled_from(DTYPES),
    st.tuples(*(st.integers(1, n) for n in (2, 64, 3))),
    st.sampled_from((8, 64)),
    st.integers(0, 2**31),
)
def test_correct_outputs_pass(
    dtype: torch.dtype, sizes: tuple[int, int, int], d_head: int, seed: int
) -> None:
    q, k, v = generate_qkv(*sizes, d_head, dtype, "cpu", seed)
    for out in (rounded(q, k, v), attention_16bit(q, k, v), torch_attention(q, k, v)):
        check = check_output(out, q, k, v)
        assert check.ok, str(check)


@pytest.mark.parametrize("dtype", DTYPES)
@given(st.integers(0, 2**31))
def test_wrong_outputs_fail(dtype: torch.dtype, seed: int) -> None:
    q, k, v = generate_qkv(*SHAPE, dtype, "cpu", seed)
    good = rounded(q, k, v)
    without_a_key_block = rounded(q, k[:, :48], v[:, :48])
    wrong_block = good.clone()
    wrong_block[1, 16:32, 2] = good[1, 32:48, 2]
    for wrong in (
        wrong_block,
        without_a_key_block,
        good[:, :, [1, 0, 2, 3]],
        good.flip(0),
        rounded(q * 1.1, k, v),
        torch.zeros_like(good),
    ):
        assert not check_output(wrong, q, k, v).ok


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_no_number_fails_and_is_found(dtype: torch.dtype, value: float) -> None:
    q, k, v = generate_qkv(*SHAPE, dtype)
    out = rounded(q, k, v)
    out[1, 37, 2, 5] = value
    check = check_output(out, q, k, v)
    assert not check.ok
    assert check.worst_index == (1, 37, 2, 5)
    assert "NOT within" in str(check)


def test_inputs_that_are_no_numbers_never_pass() -> None:
    q, k, v = generate_qkv(*SHAPE, torch.float16)
    q[0, 0, 0, 0] = math.nan
    assert not check_output(rounded(q, k, v), q, k, v).ok


def test_a_check_reports_the_numbers_it_was_made_from() -> None:
    q, k, v = generate_qkv(*SHAPE, torch.float16)
    exact = oracle(q, k, v)
    out = exact.to(torch.float16)
    out[0, 3, 1, 7] += 0.5
    check = check_output(out, q, k, v)
    reference = float((attention_16bit(q, k, v).double() - exact).abs().max())
    assert check.error == pytest.approx(0.5, abs=1e-2)
    assert check.worst_index == (0, 3, 1, 7)
    assert check.reference_error == reference
    assert check.allowed == 2 * reference + rounding_step(exact.to(torch.float16))
    assert check.ratio == check.error / reference


def test_the_ratio_is_defined_when_torch_makes_no_error() -> None:
    assert Check(0.0, 0.0, 1e-3, (0, 0, 0, 0)).ratio == 0.0
    assert Check(1e-4, 0.0, 1e-3, (0, 0, 0, 0)).ratio == math.inf


def test_an_output_of_another_shape_or_dtype_is_refused() -> None:
    q, k, v = generate_qkv(*SHAPE, torch.float16)
    for wrong in (q[:, :32], q.float()):
        with pytest.raises(UnsupportedError, match="an output has q's shape and dtype"):
            check_output(wrong, q, k, v)
