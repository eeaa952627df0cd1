# SPDX-License-Identifier: Apache-2.0
"""Attention by torch on the CPU: the same semantics, held to the oracle."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from flash_attention import UnsupportedError, attention
from flash_attention.reference import formula
from flash_attention.reference.oracle import oracle, oracle_lse
from tests.feature_cases import CASES, Case
from tests.gate import in_turn

MASKS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window": (2, 1)},
    {"window": (-1, 3)},
    {"window": (0, None), "causal": True},
    {"window": (50, 50)},
]
EXTRAS: list[dict[str, Any]] = [{}, {"softcap": 3.0}, {"softmax_scale": 0.3}, {"sinks": True}]


@pytest.mark.parametrize(
    ("case", "return_lse"), in_turn(CASES, (False, True), id_of=lambda case: str(case.name))
)
def test_every_case_is_right(case: Case, return_lse: bool) -> None:
    made = case.make()
    if return_lse:
        out, lse = attention(made.q, made.k, made.v, return_lse=True, **made.arguments)
        made.assert_right(out, lse)
    else:
        made.assert_right(attention(made.q, made.k, made.v, **made.arguments))


@pytest.mark.parametrize("extra", EXTRAS, ids=str)
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_float32_is_accurate(mask: dict[str, Any], extra: dict[str, Any]) -> None:
    for seq_q, seq_k, d_v in itertools.product((1, 7, 9), (7, 5), (8, 5)):
        case = Case("", seq_q, seq_k, d_qk=8, d_v=d_v, batch=2, **mask, **extra)
        made = case.make(dtype=torch.float32)
        exact = oracle(made.q, made.k, made.v, **made.keywords)
        plain = attention(made.q, made.k, made.v, **made.arguments)
        out, lse = attention(made.q, made.k, made.v, return_lse=True, **made.arguments)
        assert torch.allclose(plain.double(), exact, atol=1e-5)
        assert torch.allclose(out.double(), exact, atol=1e-5)
        exact_lse = oracle_lse(made.q, made.k, **made.keywords)
        assert torch.allclose(lse.double(), exact_lse, atol=1e-5)
        assert lse.dtype == torch.float32


def test_float64_is_computed_in_float64() -> None:
    made = Case("", 20, 30, causal=True, softcap=2.0, sinks=True).make(dtype=torch.float64)
    out = attention(made.q, made.k, made.v, **made.arguments)
    assert out.dtype == torch.float64
    exact = oracle(made.q, made.k, made.v, **made.keywords)
    assert torch.allclose(out, exact, rtol=0, atol=1e-12)


def test_few_scores_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Case("", 50, 60, window=(9, 4), softcap=3.0, batch=2).make(dtype=torch.float32)
    expected = attention(made.q, made.k, made.v, **made.arguments)
    monkeypatch.setattr(formula, "SCORES_BYTES", 7 * 4 * 60)
    parts = attention(made.q, made.k, made.v, **made.arguments)
    assert torch.allclose(parts, expected, atol=1e-6)


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize("sinks", [False, True])
def test_without_a_query_or_a_key_there_is_nothing_to_compute(
    lengths: tuple[int, int], sinks: bool
) -> None:
    made = Case("", *lengths, sinks=sinks).make()
    out, lse = attention(made.q, made.k, made.v, return_lse=True, **made.arguments)
    assert torch.equal(out, torch.zeros_like(made.q))
    sink = made.keywords["sinks"] if sinks else torch.full((4,), -torch.inf)
    assert torch.equal(lse, sink[None, :, None].expand(1, 4, lengths[0]))


def test_a_given_output_is_filled_and_returned() -> None:
    made = Case("", 20, 30, d_v=24).make()
    expected = attention(made.q, made.k, made.v)
    room = torch.full((1, 22, 4, 32), 7.0, dtype=made.q.dtype)
    inside = room[:, 1:21, :, 4:28]
    assert attention(made.q, made.k, made.v, out=inside) is inside
    assert torch.equal(inside, expected)
    inside.fill_(7.0)
    assert bool((room == 7.0).all())
    with torch.inference_mode():
        kept = torch.full_like(expected, torch.nan)
    assert torch.equal(attention(made.q, made.k, made.v, out=kept), expected)


def test_what_a_kernel_would_refuse_is_refused() -> None:
    made = Case("", 20, 30).make()
    q, k, v = made.q, made.k, made.v
    bad: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((q, k, v.float()), {}, "v has dtype torch.float32, q has dtype torch.bfloat16"),
        ((q.int(), k.int(), v.int()), {}, "q is torch.int32; allowed on the CPU are torch.float16"),
        ((q, k[:, :, :, :8], v), {}, "q and k must agree in d_head"),
        ((q[0], k, v), {}, "q has 3 dimensions"),
        ((q, k, None), {}, "v is a NoneType"),
        ((q, k, v), {"softcap": -1.0}, r"softcap is -1\.0"),
        ((q, k, v), {"out": q[:, :3]}, "the output has shape"),
        ((q, k, v), {"out": q}, "the output and q overlap"),
        ((q, k, v), {"sinks": torch.zeros(3)}, "sinks has shape"),
        (
            (q.clone().requires_grad_(), k, v),
            {"out": torch.empty_like(q)},
            "out is given and a tensor requires grad, .* leave out out",
        ),
    ]
    for tensors, keywords, message in bad:
        with pytest.raises(UnsupportedError, match=message):
            attention(*tensors, **keywords)


def test_lengths_outside_of_their_tensors_are_refused() -> None:
    made = Case("", (10, 20), (15, 25)).make()
    wrong = made.arguments | {"max_seqlen_k": 20}
    with pytest.raises(UnsupportedError, match="sequence 1 of k has 25 rows"):
        attention(made.q, made.k, made.v, **wrong)


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.complex64])
def test_element_types_that_torch_does_not_compute_are_refused(dtype: torch.dtype) -> None:
    q = torch.zeros(1, 4, 2, 16, dtype=dtype)
    with pytest.raises(UnsupportedError, match=rf"q is {dtype}; allowed on the CPU are torch.flo"):
        attention(q, q, q)


def test_no_columns_have_no_scores() -> None:
    q, v = torch.zeros(1, 4, 2, 0), torch.zeros(1, 4, 2, 16)
    with pytest.raises(UnsupportedError, match=r"q has shape \(1, 4, 2, 0\), .* at least 1"):
        attention(q, q, v)


def test_numbers_of_any_kind_are_taken_as_they_are_meant() -> None:
    q, k, v = torch.randn(3, 1, 5, 2, 16).unbind()

    def lse(**options: Any) -> torch.Tensor:
        found: torch.Tensor = attention(q, k, v, **options, return_lse=True)[1]
        return found

    for given in (Fraction(1, 4), np.float32(0.25)):
        for name in ("softmax_scale", "softcap"):
            assert torch.equal(lse(**{name: given}), lse(**{name: 0.25}))
    assert torch.equal(lse(window=(10**30, 0)), lse(window=(5, 0)))


def test_a_switch_that_is_none_is_refused() -> None:
    q = torch.zeros(1, 4, 2, 16)
    with pytest.raises(UnsupportedError, match="validate is a Tensor; pass True or False"):
        attention(q, q, q, validate=torch.zeros(2))  # type: ignore[call-overload]


@pytest.mark.parametrize("extra", [{}, {"softcap": 3.0}], ids=["torch", "formula"])
@pytest.mark.parametrize("mask", [{"causal": True}, {"window": (2, 1)}], ids=["causal", "window"])
def test_the_default_device_is_not_that_of_the_call(
    mask: dict[str, Any], extra: dict[str, Any]
) -> None:
    q, k, v = (torch.randn(2, n, 2, 16, dtype=torch.float64) for n in (5, 8, 8))
    with torch.device("meta"):
        out = attention(q, k, v, **mask, **extra)
        _, lse = attention(q, k, v, **mask, **extra, return_lse=True)
    torch.testing.assert_close(out, oracle(q, k, v, **mask, **extra))
    torch.testing.assert_close(lse.double(), oracle_lse(q, k, **mask, **extra))


def test_an_output_may_be_a_parameter_where_no_gradient_is_recorded() -> None:
    q, k, v = (torch.randn(2, 5, 2, 16) for _ in "qkv")
    out = torch.nn.Parameter(torch.empty_like(q))
    with torch.no_grad():
        assert attention(q, k, v, out=out) is out
    torch.testing.assert_close(out.detach(), attention(q, k, v))
