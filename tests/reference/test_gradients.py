# SPDX-License-Identifier: Apache-2.0
"""The formulas of gradients, held to torch's derivative of the forward formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import UnsupportedError
from flash_attention.call.backward_call import BackwardCall, Wanted
from flash_attention.call.call import Call
from flash_attention.reference import formula
from flash_attention.reference.formula import evaluate
from flash_attention.reference.gradients import evaluate_gradients, gradients_on_cpu
from tests.feature_cases import CASES, Case

EVERYTHING = Case(
    "",
    (100, 1, 30),
    (120, 7, 40),
    d_v=24,
    sinks=True,
    softcap=3.0,
    window=(40, 3),
    used=(90, 0, 40),
)


def backward_call(
    case: Case, dtype: torch.dtype = torch.float64, wanted: Wanted | None = None
) -> BackwardCall:
    """The backward pass of a case with random gradients of its results."""
    made = case.make(dtype=dtype)
    call = made.call(return_lse=True)
    out, lse = (
        t.to(d)
        for t, d in zip(
            evaluate(call, torch.float64, lse=True),
            (dtype, torch.promote_types(dtype, torch.float32)),
            strict=True,
        )
    )
    generator = torch.Generator().manual_seed(1)
    do, dlse = (torch.randn(t.shape, generator=generator).to(t.dtype) for t in (out, lse))
    wanted = Wanted(dsinks=case.sinks) if wanted is None else wanted
    return BackwardCall(do, call._replace(out=out), lse, dlse, wanted)


def differentiated(backward: BackwardCall) -> list[Tensor]:
    """The same gradients by torch's autograd of the forward formula."""
    call = backward.call
    given = [
        t.double().nan_to_num().requires_grad_() for t in (*call[:3], call.sinks) if t is not None
    ]
    q, k, v, *sinks = given
    repeated = call._replace(q=q, k=k, v=v, out=None, sinks=sinks[0] if sinks else None)
    out, lse = evaluate(repeated, torch.float64, lse=True)
    assert backward.dlse is not None
    seen = lse != -torch.inf
    loss = (out * backward.do.double()).sum() + (lse * backward.dlse)[seen].sum()
    return list(torch.autograd.grad(loss, given))


@pytest.mark.parametrize("case", [*CASES, EVERYTHING], ids=lambda case: case.name or "everything")
def test_every_case_is_the_derivative_of_the_formula(case: Case) -> None:
    backward = backward_call(case)
    found = [t for t in gradients_on_cpu(backward) if t is not None]
    for given, exact in zip(found, differentiated(backward), strict=True):
        assert torch.allclose(
            given.double(), exact, rtol=0, atol=1e-6 if given.ndim == 1 else 1e-12
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_precisions_are_computed_in_float32(dtype: torch.dtype) -> None:
    backward = backward_call(EVERYTHING, dtype)
    allowed = 2e-5 if dtype == torch.float32 else 2e-2
    found = [t for t in gradients_on_cpu(backward) if t is not None]
    assert [t.dtype for t in found] == [dtype, dtype, dtype, torch.float32]
    for given, exact in zip(found, differentiated(backward), strict=True):
        scale = float(exact.abs().max())
        assert torch.allclose(given.double(), exact, rtol=0, atol=allowed * scale)


def test_few_scores_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    backward = backward_call(Case("", 50, 60, window=(9, 4), softcap=3.0, batch=2, sinks=True))
    wanted = gradients_on_cpu(backward)
    monkeypatch.setattr(formula, "SCORES_BYTES", 7 * 8 * 60)
    for given, exact in zip(gradients_on_cpu(backward), wanted, strict=True):
        assert given is not None
        assert exact is not None
        assert torch.allclose(given, exact, atol=1e-12)


@pytest.mark.parametrize("wanted", [Wanted(False, True, False), Wanted(True, False, False, True)])
def test_what_is_not_wanted_is_none(wanted: Wanted) -> None:
    every = gradients_on_cpu(backward_call(EVERYTHING))
    some = gradients_on_cpu(backward_call(EVERYTHING, wanted=wanted))
    for given, exact, is_wanted in zip(some, every, wanted, strict=True):
        assert (given is None) == (not is_wanted)
        if given is not None and exact is not None:
            assert torch.equal(given, exact)


def test_rows_without_a_key_and_unused_keys_have_gradient_zero() -> None:
    case = Case("", 9, 5, causal=True, batch=2, used=(5, 3))
    backward = backward_call(case)
    dq, dk, dv, _ = gradients_on_cpu(backward)
    assert dq is not None
    assert dk is not None
    assert dv is not None
    assert not dq[0, :4].any()
    assert not dq[1, :6].any()
    assert bool(dq[0, 4:].any(-1).all())
    assert not dk[1, 3:].any()
    assert not dv[1, 3:].any()


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0), (0, 0)])
def test_without_a_query_or_a_key_only_the_lse_has_a_gradient(lengths: tuple[int, int]) -> None:
    backward = backward_call(Case("", *lengths, sinks=True))
    dq, dk, dv, dsinks = gradients_on_cpu(backward)
    assert dsinks is not None
    assert backward.dlse is not None
    for gradient in (dq, dk, dv):
        assert gradient is not None
        assert not gradient.any()
    torch.testing.assert_close(dsinks.double(), backward.dlse.sum((0, 2)))


def test_autocast_and_the_grad_mode_change_nothing() -> None:
    backward = backward_call(EVERYTHING, torch.float32)
    wanted = gradients_on_cpu(backward)
    with torch.autocast("cpu", torch.bfloat16):
        given = gradients_on_cpu(backward)
    assert all(
        a is not None and b is not None and torch.equal(a, b)
        for a, b in zip(given, wanted, strict=True)
    )


def test_gradients_of_a_part_of_the_keys_come_from_the_results_of_all() -> None:
    """o and lse of all keys, as in context parallelism: the parts of dq add up to the whole."""
    backward = backward_call(Case("", 20, 30))._replace(dlse=None)
    call = backward.call
    whole = evaluate_gradients(backward, torch.float64)
    parts = [
        evaluate_gradients(
            backward._replace(call=call._replace(k=call.k[:, s], v=call.v[:, s])), torch.float64
        )
        for s in (slice(11), slice(11, 30))
    ]
    for name, gather in (("dq", sum), ("dk", lambda t: torch.cat(list(t), 1))):
        given: Any = gather(getattr(part, name) for part in parts)
        assert torch.allclose(given, getattr(whole, name), atol=1e-12)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "shape of do": ({"do": torch.zeros(1, 8, 4, 64)}, r"do has shape \(1, 8, 4, 64\), o has shape"),
    "dtype of do": ({"do": torch.zeros(1, 9, 4, 64).double()}, "do has dtype torch.float64, o has"),
    "device of do": ({"do": torch.zeros(1, 9, 4, 64, device="meta")}, "do has device meta"),
    "no do": ({"do": None}, "do is a NoneType; pass a torch.Tensor"),
    "no lse": ({"lse": None}, "lse is missing; pass the log-sum-exp .* return_lse=True"),
    "shape of lse": ({"lse": torch.zeros(1, 4, 8)}, r"lse has shape .*has shape \(1, 4, 9\), as"),
    "dtype of lse": ({"lse": torch.zeros(1, 4, 9).half()}, "lse is torch.float16; it must be"),
    "strides of lse": ({"lse": torch.zeros(1, 9, 4).mT}, r"lse has strides .*lse\.contiguous"),
    "shape of dlse": ({"dlse": torch.zeros(4, 9)}, r"dlse has shape \(4, 9\)"),
    "no sinks": ({"wanted": Wanted(dsinks=True)}, "gradient of sinks is wanted, and sinks is not"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_words(name: str) -> None:
    changes, message = BAD[name]
    backward = backward_call(Case("", 9, 5), torch.float32)._replace(**changes)
    with pytest.raises(UnsupportedError, match=message):
        gradients_on_cpu(backward)


def test_a_bad_forward_call_is_refused_in_words() -> None:
    backward = backward_call(Case("", 9, 5), torch.float32)

    def of(**changes: Any) -> Call:
        return backward.call._replace(**changes)

    for call, message in (
        (of(out=None), "o is a NoneType; pass the output of the forward pass"),
        (of(out=torch.zeros(1, 9, 4, 8)), r"o has shape \(1, 9, 4, 8\); it must have"),
        (of(k=backward.call.k[..., :8]), "q and k must agree in d_head"),
        (of(softcap=-1.0), r"softcap is -1\.0"),
        (of(block_table=torch.zeros(1, 1).int()), "no gradients of a paged KV cache"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            gradients_on_cpu(backward._replace(call=call))
