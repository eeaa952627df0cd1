# SPDX-License-Identifier: Apache-2.0
"""Gradients of calls whose plans are known: both passes go to their plans, and compute the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from flash_attention import KernelConfigError, UnsupportedError, attention, autograd
from flash_attention.call.backward_call import BackwardProblem
from flash_attention.call.call import Call
from flash_attention.launch.plan import Plan
from tests.backward_cases import backward_of, flash_config
from tests.devices import DEVICES
from tests.feature_cases import Case, selected
from tests.gradients import leaves

CASES = [
    Case("plain", 20, 40, 32, 32, batch=2),
    Case("sinks", 20, 40, 32, 32, sinks=True, causal=True),
    Case("keys in use", 20, 40, 32, 32, batch=2, used=(40, 7)),
    Case("packed", (9, 0, 21), (5, 12, 40), 32, 32, sinks=True),
]


class Known:
    """The calls of a case. On the CPU the emulator runs them, on a GPU what is chosen there."""

    def __init__(self, case: Case, device: str) -> None:
        on_cpu, made = case.make(), case.make(device)
        self.keywords: dict[str, Any] = made.arguments | {"deterministic": True}
        self.reference = dict(made.arguments)
        if device == "cpu":
            self.keywords["config"] = selected(on_cpu, "sm_80")
            backward = backward_of(on_cpu, deterministic=True)
            self.keywords["backward_config"] = flash_config(backward, "sm_80")
        self.given = leaves(*(t.nan_to_num() for t in (made.q, made.k, made.v)))
        if self.keywords["sinks"] is not None:
            (sinks,) = leaves(self.keywords["sinks"])
            self.given.append(sinks)
            self.keywords["sinks"] = self.reference["sinks"] = sinks

    def attend(self, *tensors: Tensor, **more: Any) -> Any:
        q, k, v = tensors[:3]
        return attention(q, k, v, **self.keywords, **more)

    def gradients(self, *, of_lse: bool = False) -> list[Tensor]:
        """The gradients of the output, and perhaps of the log-sum-exp, for random ones of them."""
        if not of_lse:
            return self._differentiated((self.attend(*self.given),))
        return self._differentiated(self.attend(*self.given, return_lse=True))

    def exact(self, *, of_lse: bool = False) -> list[Tensor]:
        """The same in float64, on the CPU."""
        given = [t.detach().double().cpu().requires_grad_() for t in self.given]
        asked: dict[str, Any]
        asked = {n: t.cpu() if isinstance(t, Tensor) else t for n, t in self.reference.items()}
        if len(given) > 3:
            asked["sinks"] = given[3]
        q, k, v = given[:3]
        results = attention(q, k, v, **asked, return_lse=True)
        return self._differentiated(results if of_lse else results[:1], given)

    def _differentiated(
        self, results: tuple[Tensor, ...], given: list[Tensor] | None = None
    ) -> list[Tensor]:
        weights = []
        for seed, result in enumerate(results):
            generator = torch.Generator().manual_seed(seed)
            weights.append(torch.randn(result.shape, generator=generator).to(result))
        return list(torch.autograd.grad(results, given or self.given, weights))


@contextmanager
def only_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Refuses calls in the block that do not go straight to a plan."""

    def refuse(*asked: Any) -> Any:
        raise AssertionError("a plan was looked for")

    with monkeypatch.context() as patch:
        for name in ("compute", "compute_gradients", "compute_recorded"):
            patch.setattr(autograd, name, refuse)
        yield


def assert_close(found: list[Tensor], exact: list[Tensor]) -> None:
    for mine, theirs in zip(found, exact, strict=True):
        step = 0.03 * max(1.0, float(theirs.abs().max()))
        torch.testing.assert_close(mine.double().cpu(), theirs, rtol=0, atol=step)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("of_lse", [False, True], ids=["out", "lse"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_known_passes_compute_what_new_ones_do(
    case: Case, of_lse: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Known(case, device)
    first = known.gradients(of_lse=of_lse)
    assert_close(first, known.exact(of_lse=of_lse))
    again = known.gradients(of_lse=of_lse)  # which notes the plans
    with only_known(monkeypatch):
        last = known.gradients(of_lse=of_lse)
    for one, two, three in zip(first, again, last, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def ready(case: Case = CASES[3], device: str = "cpu") -> tuple[Known, list[Tensor]]:
    """Calls whose plans are known, and their gradients."""
    known = Known(case, device)
    known.gradients()
    return known, known.gradients()


@pytest.mark.parametrize("device", DEVICES)
def test_hooks_see_what_a_known_pass_keeps(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known, wanted = ready(device=device)
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> int:
        kept.append(tensor.detach().clone())
        return len(kept) - 1

    with only_known(monkeypatch), saved_tensors_hooks(pack, lambda i: kept[i]):
        found = known.gradients()
    q, k, v, sinks = known.given
    lengths = [known.keywords[f"cu_seqlens_{of}"] for of in "qk"]
    assert all(map(torch.equal, found, wanted))
    assert all(map(torch.equal, kept[:3], (q, k, v)))
    assert [t.shape for t in kept[3:5]] == [q.shape, (4, 30)]  # the output and its lse
    assert all(map(torch.equal, kept[5:], (sinks, *lengths)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_of_known_passes_recompute_the_same(use_reentrant: bool, device: str) -> None:
    known, wanted = ready(CASES[0], device)
    out = checkpoint(known.attend, *known.given, use_reentrant=use_reentrant)
    assert isinstance(out, Tensor)
    found = known._differentiated((out,)) if not use_reentrant else _leaf_gradients(known, out)
    assert all(map(torch.equal, found, wanted))


def _leaf_gradients(known: Known, out: Tensor) -> list[Tensor]:
    """The same by `backward`, which is all that checkpoints of the older kind support."""
    generator = torch.Generator().manual_seed(0)
    out.backward(torch.randn(out.shape, generator=generator).to(out))
    return [t.grad for t in known.given if t.grad is not None]


@pytest.mark.parametrize("device", DEVICES)
def test_a_known_pass_has_no_second_derivative(device: str) -> None:
    known, wanted = ready(CASES[0], device)
    generator = torch.Generator().manual_seed(0)
    out = known.attend(*known.given)
    do = torch.randn(out.shape, generator=generator).to(out)
    found = torch.autograd.grad(out, known.given, do, create_graph=True)
    assert all(map(torch.equal, found, wanted))
    with pytest.raises(UnsupportedError, match="only attention itself is differentiable"):
        found[0].sum().backward()


@pytest.mark.parametrize("device", DEVICES)
def test_a_known_pass_reads_gradients_of_any_strides_and_alignment(device: str) -> None:
    known, wanted = ready(CASES[0], device)
    out = known.attend(*known.given)
    generator = torch.Generator().manual_seed(0)
    do = torch.randn(out.shape, generator=generator).to(out)
    beside = do.new_empty(do.numel() + 1)[1:].view(do.shape).copy_(do)
    assert beside.data_ptr() % 16
    assert beside.stride() == do.stride()
    columns = do.transpose(1, 3).contiguous().transpose(1, 3)
    for given in (beside, columns, do):
        found = torch.autograd.grad(out, known.given, given, retain_graph=True)
        assert all(map(torch.equal, found, wanted))
    with pytest.raises(UnsupportedError, match="asked for at once"):
        torch.autograd.grad(out, known.given, torch.stack((do, do)), is_grads_batched=True)


@pytest.mark.parametrize("device", DEVICES)
def test_a_known_pass_is_deterministic_when_torch_asks_for_it(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Known(CASES[0], device)
    known.keywords["deterministic"] = False
    passes: list[bool] = []
    run = Plan.run

    def noted(plan: Plan, call: Any, validate: bool = False) -> Any:
        if isinstance(plan.problem, BackwardProblem):
            passes.append(plan.problem.deterministic)
        return run(plan, call, validate)

    monkeypatch.setattr(Plan, "run", noted)
    for is_asked in (False, False, True, True, False):
        torch.use_deterministic_algorithms(is_asked)
        try:
            assert_close(known.gradients(), known.exact())
        finally:
            torch.use_deterministic_algorithms(False)
    assert passes == [False, False, True, True, False]


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_known_call_refuses(device: str) -> None:
    known, _ = ready(CASES[0], device)
    q, k, v = known.given
    room = torch.empty_like(q)
    with torch.no_grad():
        known.attend(q, k, v, out=room, return_lse=True)  # as a call that is recorded would
    with pytest.raises(UnsupportedError, match="out is given and a tensor requires grad"):
        known.attend(q, k, v, out=room)
    if device == "cpu":
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(q, q.detach())
            with pytest.raises(KernelConfigError, match="pass a HopperTangentKernelConfig"):
                known.attend(dual, k, v)
    with pytest.raises(UnsupportedError, match="validate is 3; pass True or False"):
        known.attend(q, k, v, validate=3)


@pytest.mark.parametrize("device", DEVICES)
def test_a_known_call_in_a_transform_is_transformed(device: str) -> None:
    known, _ = ready(CASES[0], device)
    q, k, v = known.given

    def loss(tensor: Tensor) -> Any:
        return known.attend(tensor, k.detach(), v.detach()).float().sum()

    found = torch.func.grad(loss)(q.detach())
    (wanted,) = torch.autograd.grad(loss(q), q)
    assert torch.equal(found, wanted)


def test_with_lse_is_the_call_that_returns_it() -> None:
    q, k, v = (t.detach() for t in Known(CASES[0], "cpu").given)
    call = Call(q, k, v, causal=True, softcap=2.0)
    assert call.with_lse()[3:-1] == call[3:-1]
    assert call.with_lse().q is q
    assert call.with_lse().return_lse
