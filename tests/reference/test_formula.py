# SPDX-License-Identifier: Apache-2.0
"""The formula that the oracle and the CPU share: precisions, bounded parts, and pages."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.reference import formula
from flash_attention.reference.formula import Formula, evaluate, without_pages
from tests.decode_cases import DECODE_CASES, FAR, DecodeCase
from tests.feature_cases import CASES, Case
from tests.gate import in_turn

close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)
PAGED = [short for short in DECODE_CASES if short.page_keys]


@pytest.mark.parametrize("precision", [torch.float64, torch.float32, torch.bfloat16])
def test_every_step_has_the_precision_that_is_asked_for(precision: torch.dtype) -> None:
    call = Case("", 20, 30, causal=True, sinks=True).make().call()
    out, lse = evaluate(call, precision, lse=True)
    assert (out.dtype, lse.dtype) == (precision, precision)
    assert (out.shape, lse.shape) == ((1, 20, 4, 64), (1, 4, 20))
    exact, exact_lse = evaluate(call, torch.float64, lse=True)
    steps = {torch.float64: 0.0, torch.float32: 1e-5, torch.bfloat16: 0.1}[precision]
    torch.testing.assert_close(out.double(), exact, rtol=steps, atol=steps)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=steps, atol=steps)


def test_logarithms_are_computed_if_they_are_asked_for() -> None:
    call = Case("", (5, 7), (9, 4)).make().call()
    out, nothing = evaluate(call, torch.float64)
    same, lse = evaluate(call, torch.float64, lse=True)
    assert nothing.numel() == 0
    assert torch.equal(out, same)
    assert lse.shape == (4, 12)


@pytest.mark.parametrize(
    ("case", "scores_bytes"), in_turn(CASES, [1, 3 * 64 * 8], id_of=lambda case: str(case.name))
)
def test_parts_of_any_size_give_the_same(
    case: Case, scores_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = case.make().call()
    whole = evaluate(call, torch.float64, lse=True)
    monkeypatch.setattr(formula, "SCORES_BYTES", scores_bytes)
    for part, expected in zip(evaluate(call, torch.float64, lse=True), whole, strict=True):
        close(part, expected)


def test_parts_are_bounded_where_many_heads_share_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = torch.randn(60, 71, 8), torch.randn(50, 1, 8)
    monkeypatch.setattr(formula, "SCORES_BYTES", 8 * 71 * 50 * 7)
    parts = [*Formula.of(Call(q[None], k[None], k[None]), torch.float64).parts(q, k, 0)]
    assert {part.scores.numel() for part in parts} == {71 * 50 * 7, 71 * 50 * 4}


@pytest.mark.parametrize("short", PAGED, ids=lambda short: short.name)
def test_keys_in_pages_are_the_keys_one_after_the_other(short: DecodeCase) -> None:
    made = short.make()
    paged = short.call(made)
    assert paged.block_table is not None
    assert FAR in paged.block_table
    plain = without_pages(paged)
    assert plain.block_table is None
    assert short.case.used is not None
    for entry, used in enumerate(short.case.used):
        for gathered, whole in ((plain.k, made.k), (plain.v, made.v)):
            assert torch.equal(gathered[entry, :used], whole[entry, :used])
    expected = evaluate(made.call(), torch.float64, lse=True)
    for paged_result, result in zip(
        evaluate(paged, torch.float64, lse=True), expected, strict=True
    ):
        close(paged_result, result)


@pytest.mark.parametrize("pages", [0, 3])
@pytest.mark.parametrize("sinks", [False, True])
def test_a_table_without_pages_names_no_keys(pages: int, sinks: bool) -> None:
    q = torch.randn(2, 3, 4, 8)
    k = torch.randn(pages, 16, 2, 8)
    columns = 0 if pages else 2
    table = torch.zeros(2, columns, dtype=torch.int32)
    logits = torch.arange(4.0) if sinks else None
    used = torch.zeros(2, dtype=torch.int32)
    call = Call(q, k, k, sinks=logits, seqused_k=used, block_table=table)
    out, lse = evaluate(call, torch.float64, lse=True)
    assert torch.equal(out, torch.zeros(2, 3, 4, 8, dtype=torch.float64))
    assert torch.equal(lse, _of_heads(logits).expand(2, 4, 3))


def _of_heads(sinks: Tensor | None) -> Tensor:
    values = torch.full((4,), -torch.inf) if sinks is None else sinks
    return values.double()[None, :, None]


@pytest.mark.parametrize("shape", [(), (1,), (2, 2)])
def test_tensors_of_8_bits_are_multiplied_by_their_factors(shape: tuple[int, ...]) -> None:
    q, k, v = (torch.randn(2, 9, heads, 16).to(torch.float8_e4m3fn) for heads in (4, 2, 2))
    factors = [torch.rand(shape) + 0.5 for _ in range(3)]
    by = [factor.expand(2, 2)[:, None, :, None].double() for factor in factors]
    exact = Call(q.double() * by[0].repeat_interleave(2, 2), k.double() * by[1], v.double() * by[2])
    scaled = Call(q, k, v, q_descale=factors[0], k_descale=factors[1], v_descale=factors[2])
    close(evaluate(scaled, torch.float64)[0], evaluate(exact, torch.float64)[0])


def test_weights_of_8_bits_have_three_bits_after_the_point() -> None:
    q = torch.tensor([[[[1.0] * 16]]]).to(torch.float8_e4m3fn)
    k = torch.tensor([0.0, 0.1]).reshape(1, 2, 1, 1).expand(1, 2, 1, 16).to(torch.float8_e4m3fn)
    v = torch.tensor([1.0, 0.0]).reshape(1, 2, 1, 1).expand(1, 2, 1, 16).to(torch.float8_e4m3fn)
    one = torch.ones(1)
    call = Call(q, k, v, softmax_scale=1.0, q_descale=one, k_descale=one, v_descale=one)
    small = torch.exp(-16 * k[0, 1, 0, 0].double())  # of the first key, relative to the second
    rounded = (256 * small).float().to(torch.float8_e4m3fn).double() / 256
    out, _ = evaluate(call, torch.float64, weights_of_8_bits=True)
    close(out[0, 0, 0, 0], rounded / (1 + small))
