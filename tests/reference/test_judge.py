# SPDX-License-Identifier: Apache-2.0
"""The oracle against torch's own attention, and what the tolerance rule lets through."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flash_attention.call.call import Keywords
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType
from flash_attention.reference import formula
from flash_attention.reference.judge import (
    Check,
    Judge,
    check_lse,
    check_output,
    cu_seqlens,
    generate_qkv,
    generate_qkvo,
    rounding_step,
)
from flash_attention.reference.oracle import attention_16bit, oracle, oracle_lse

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
    result = oracle(q, k, v, softmax_scale=scale)
    assert result.dtype == torch.float64
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scores_bytes", [1, 64 * 8, 5 * 64 * 8, 3 * 64 * 64 * 8])
def test_chunks_do_not_change_the_oracle(
    scores_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = generate_qkv(*SHAPE, torch.bfloat16)
    whole = oracle(q, k, v)
    monkeypatch.setattr(formula, "SCORES_BYTES", scores_bytes)
    torch.testing.assert_close(oracle(q, k, v), whole, rtol=1e-12, atol=1e-12)


@dataclass(frozen=True)
class Sizes:
    """Of one problem with two batch entries."""

    seq_q: int
    seq_k: int
    heads: int
    heads_k: int
    causal: bool

    def qkv(self, dtype: torch.dtype = torch.float16) -> tuple[Tensor, Tensor, Tensor]:
        return generate_qkv(
            *(2, self.seq_q, self.heads, 8, dtype),
            seq_len_k=self.seq_k,
            n_heads_k=self.heads_k,
        )


WIDER = [
    Sizes(7, 7, 2, 2, causal=True),
    Sizes(5, 9, 4, 2, causal=True),
    Sizes(9, 4, 4, 1, causal=True),
    Sizes(9, 4, 6, 3, causal=False),
    Sizes(3, 0, 2, 1, causal=True),
    Sizes(3, 0, 2, 2, causal=False),
]


def one_score_at_a_time(
    sizes: Sizes, q: Tensor, k: Tensor, v: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Output and lse by the definition, in Python floats."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    lse = torch.full((q.shape[0], sizes.heads, sizes.seq_q), -math.inf, dtype=torch.float64)
    for b, i, h in product(range(q.shape[0]), range(sizes.seq_q), range(sizes.heads)):
        shared = h * sizes.heads_k // sizes.heads
        keys = [
            j for j in range(sizes.seq_k) if not sizes.causal or j <= i + sizes.seq_k - sizes.seq_q
        ]
        weights = [
            math.exp(scale * float(q[b, i, h].double() @ k[b, j, shared].double())) for j in keys
        ]
        if keys:
            lse[b, h, i] = math.log(sum(weights))
        for j, weight in zip(keys, weights, strict=True):
            out[b, i, h] += weight / sum(weights) * v[b, j, shared].double()
    return out, lse


@pytest.mark.parametrize("sizes", WIDER, ids=str)
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("scores_bytes", [1, 3 * 9 * 8, 1 << 30])
def test_masks_shared_heads_and_lengths_against_the_definition(
    sizes: Sizes, scale: float | None, scores_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formula, "SCORES_BYTES", scores_bytes)
    q, k, v = sizes.qkv()
    out, lse = one_score_at_a_time(sizes, q, k, v, 8**-0.5 if scale is None else scale)
    close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)
    asked: Keywords = {"softmax_scale": scale, "causal": sizes.causal}
    close(oracle(q, k, v, **asked), out)
    close(oracle_lse(q, k, **asked), lse)
    rounded_steps = attention_16bit(q, k, v, **asked)
    torch.testing.assert_close(rounded_steps.double(), out, rtol=0, atol=5e-3)
    assert Judge(q, k, v, **asked).check(out.to(q.dtype)).ok
    assert check_lse(lse.float(), q, k, **asked).ok


def test_the_mask_ends_at_the_last_key_and_not_at_the_first() -> None:
    q, k, v = Sizes(5, 9, 2, 2, causal=True).qkv()
    scores = torch.einsum("bihd,bjhd->bhij", q.double(), k.double()) * 8**-0.5
    top_left = scores.masked_fill(~torch.ones(5, 9, dtype=torch.bool).tril(), -math.inf)
    wrong = torch.einsum("bhij,bjhd->bihd", top_left.softmax(-1), v.double())
    assert not check_output(wrong.to(q.dtype), q, k, v, causal=True).ok
    assert not check_lse(top_left.logsumexp(-1).float(), q, k, causal=True).ok
    assert not check_output(oracle(q, k, v).to(q.dtype), q, k, v, causal=True).ok


@pytest.mark.parametrize("value", [math.nan, 1e-3])
def test_a_query_without_keys_must_store_zeros(value: float) -> None:
    q, k, v = Sizes(9, 4, 2, 2, causal=True).qkv()
    out = oracle(q, k, v, causal=True).to(q.dtype)
    assert not out[:, :5].any()
    judge = Judge(q, k, v, causal=True)
    assert judge.check(out).ok
    out[1, 2, 1, 3] = value if math.isnan(value) else 2 * judge.allowed
    assert judge.check(out).worst_index == (1, 2, 1, 3)
    assert not judge.check(out).ok


@pytest.mark.parametrize("dtype", DTYPES)
def test_lse_in_float32_passes_and_other_quantities_do_not(dtype: torch.dtype) -> None:
    q, k, _ = generate_qkv(*SHAPE, dtype)
    scores = torch.einsum("bihd,bjhd->bhij", q.float(), k.float()) * SHAPE[3] ** -0.5
    lse = scores.logsumexp(-1)
    assert check_lse(lse, q, k).ok
    for wrong in (
        lse / math.log(2),
        scores[..., 1:].logsumexp(-1),
        scores.amax(-1),
        lse.flip(1),
        lse + 1e-3,
    ):
        check = check_lse(wrong, q, k)
        assert not check.ok
        assert "NOT within" in str(check)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_minus_infinity_is_right_only_where_there_is_no_key(value: float) -> None:
    q, k, _ = Sizes(9, 4, 2, 2, causal=True).qkv()
    lse = oracle_lse(q, k, causal=True).float()
    assert bool((lse[:, :, :5] == -math.inf).all())
    seen = lse.clone()
    seen[1, 0, 7] = value
    assert check_lse(seen, q, k, causal=True).worst_index == (1, 0, 7)
    assert not check_lse(seen, q, k, causal=True).ok
    keyless = lse.clone()
    keyless[0, 1, 2] = value
    assert check_lse(keyless, q, k, causal=True).ok == (value == -math.inf)
    keyless[0, 1, 2] = -1e30
    check = check_lse(keyless, q, k, causal=True)
    assert (check.error, check.worst_index) == (math.inf, (0, 1, 2))


def test_an_lse_of_another_shape_or_dtype_is_refused() -> None:
    q, k, _ = generate_qkv(*SHAPE, torch.float16)
    lse = oracle_lse(q, k)
    for wrong in (lse, lse.float().transpose(1, 2)):
        with pytest.raises(UnsupportedError, match=r"\(batch, heads, seq_q\) = \(2, 4, 64\)"):
            check_lse(wrong, q, k)


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


def test_keys_and_values_may_have_a_length_and_heads_of_their_own() -> None:
    q, k, v, o = generate_qkvo(*SHAPE, torch.float16, seq_len_k=5, n_heads_k=2)
    assert list(q.shape) == list(o.shape) == list(SHAPE)
    assert list(k.shape) == list(v.shape) == [2, 5, 2, 32]
    assert torch.equal(generate_qkv(*SHAPE, torch.float16)[0], q)


def test_values_may_have_columns_of_their_own() -> None:
    q, k, v, o = generate_qkvo(*SHAPE, torch.float16, d_v=8)
    assert list(v.shape) == list(o.shape) == [2, 64, 4, 8]
    assert list(k.shape) == list(q.shape)
    assert check_output(oracle(q, k, v).to(q.dtype), q, k, v).ok
    with pytest.raises(UnsupportedError, match=r"\(2, 64, 4, 8\)"):
        check_output(q, q, k, v)


def test_packed_outputs_are_held_to_the_rule_entry_by_entry() -> None:
    q, k, v = (t[0] for t in generate_qkv(1, 12, 2, 8, torch.float16))
    bounds = cu_seqlens((5, 0, 7))
    assert bounds.dtype == torch.int32
    assert bounds.tolist() == [0, 5, 5, 12]
    packed: Keywords = {"cu_seqlens_q": bounds, "cu_seqlens_k": bounds, "causal": True}
    judge = Judge(q, k, v, **packed)
    assert judge.check(oracle(q, k, v, **packed).to(q.dtype)).ok
    one_entry = oracle(q[None], k[None], v[None], causal=True)[0].to(q.dtype)
    check = judge.check(one_entry)
    assert not check.ok
    assert check.worst_index[0] >= 5
    lse = oracle_lse(q, k, **packed).float()
    assert check_lse(lse, q, k, **packed).ok
    with pytest.raises(UnsupportedError, match=r"\(heads, total_q\) = \(2, 12\)"):
        check_lse(lse.T, q, k, **packed)


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
@settings(max_examples=20)
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
        with pytest.raises(UnsupportedError, match=r"the columns of v: \(2, 64, 4, 32\) torch"):
            check_output(wrong, q, k, v)


def test_mismatched_elements_are_counted() -> None:
    q, k, v = generate_qkv(1, 64, 2, 64, DType.FP16)
    out = oracle(q, k, v).half()
    judge = Judge(q, k, v)
    right = judge.check(out)
    assert (right.mismatched, right.elements) == (0, 64 * 2 * 64)
    assert "mismatched" not in str(right)
    out[0, 3] += 1
    out[0, 5, 1, 7] = math.nan
    wrong = judge.check(out)
    assert wrong.mismatched == 2 * 64 + 1
    assert wrong.mismatches == "129 of 8,192 elements (1.57 %)"
    assert str(wrong).endswith("mismatched: 129 of 8,192 elements (1.57 %)")
