# SPDX-License-Identifier: Apache-2.0
"""Gradients of captured tensors, against float64 autograd of the formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from flash_attention import Function, UnsupportedError, attention, masks, scores
from flash_attention.autograd import gathering_by_kernels
from flash_attention.call.backward_call import ALL, BackwardCall
from flash_attention.call.call import Call as Forward
from flash_attention.call.captured import captured_gradients
from flash_attention.dropout import dropout_mask
from flash_attention.launch.emulation import Settings, emulate_backward_plan
from flash_attention.launch.plan import Plan
from flash_attention.reference.formula import evaluate
from tests.devices import HOPPER_DEVICES, on_devices
from tests.families.sm90.backward.cases import config
from tests.functions.cases import BACKWARD, FORWARD

BATCH, HEADS, HEADS_K, QUERIES, KEYS, D = 2, 2, 1, 70, 140, 64
Change = Callable[..., Any]


@dataclass(frozen=True)
class Learned:
    """A score function of captured tensors, their shapes, and what else a call has."""

    change: Callable[..., Change]  # from tensors to a score function
    shapes: Sequence[tuple[int, ...]]
    options: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    mask: Any = None
    q_starts: tuple[int, ...] = ()
    k_starts: tuple[int, ...] = ()


def mixed(scale: Tensor, rows: Tensor, columns: Tensor, both: Tensor) -> Change:
    """Derivatives that depend on the score, on other tensors, and two reads of one tensor."""

    def change(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        scaled = torch.tanh(score * scale[head]) + rows[batch, query] * columns[key]
        return scaled + both[query, key % 70] * both[key % 70, query]

    return change


def twice(slopes: Tensor, table: Tensor) -> Change:
    """Indices of which many scores share one."""
    bias = scores.relative_bias(table)

    def change(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        biased = bias(score, batch, head, query, key)
        return biased - slopes * abs(query - key) + torch.log(table[head, query // 9] ** 2 + 1)

    return change


PACKED: dict[str, Any] = {"q_starts": (0, 30, 30, 100, 103), "k_starts": (0, 50, 80, 150, 150)}
CASES: dict[str, Learned] = {
    "a bias of all scores": Learned(
        scores.additive_bias,
        [(BATCH, HEADS, QUERIES, KEYS)],
        {"causal": True},
        torch.bfloat16,
    ),
    "a bias that is loaded by blocks": Learned(
        lambda bias: lambda s, b, h, q, k: 0.5 * s + 2 * bias[h, q, k],
        [(HEADS, QUERIES, KEYS + 4)],
        dtype=torch.bfloat16,
    ),
    "a bias that its own gradient needs": Learned(
        lambda bias: lambda s, b, h, q, k: s + torch.exp(bias[b, h, q, k]),
        [(BATCH, HEADS, QUERIES, KEYS + 4)],
        dtype=torch.bfloat16,
    ),
    "biases of some": Learned(
        lambda a, b: lambda s, *at: scores.additive_bias(b)(scores.additive_bias(a)(s, *at), *at),
        [(QUERIES, KEYS), (BATCH, 1, 1, KEYS)],
        {"window": (40, 30)},
    ),
    "slopes": Learned(
        lambda slopes: lambda s, b, h, q, k: s + slopes[h] * (k - q),
        [(HEADS,)],
        {"softcap": 3.0},
        torch.float16,
    ),
    "a table": Learned(scores.relative_bias, [(HEADS, 41)], mask=masks.window(60, 90)),
    "with dropout": Learned(
        scores.relative_bias,
        [(HEADS, 301)],
        {"dropout_p": 0.25, "rng_state": torch.tensor([7, 4])},
        torch.float64,
    ),
    "derivatives of all kinds": Learned(
        mixed, [(HEADS,), (BATCH, QUERIES), (KEYS,), (QUERIES, QUERIES)]
    ),
    "packed": Learned(
        lambda bias, slopes: (
            lambda s, *at: scores.alibi(slopes)(scores.additive_bias(bias)(s, *at), *at)
        ),
        [(4, HEADS, 70, 70), (4, HEADS)],
        {"causal": True},
        **PACKED,
    ),
    "packed, shared": Learned(twice, [(), (HEADS, 101)], **PACKED),
}


class Call:
    """The tensors of a case, and the formula in another precision."""

    def __init__(self, case: Learned, device: str, d: int = D) -> None:
        torch.manual_seed(3)
        self.case, self.device = case, device
        packed = bool(case.q_starts)
        rows_q = (case.q_starts[-1],) if packed else (BATCH, QUERIES)
        rows_k = (case.k_starts[-1],) if packed else (BATCH, KEYS)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape).to(device, torch.bfloat16)

        self.q, self.do = drawn(*rows_q, HEADS, d), drawn(*rows_q, HEADS, d)
        self.k, self.v = drawn(*rows_k, HEADS_K, d), drawn(*rows_k, HEADS_K, d)
        self.captured = [
            torch.randn(shape).to(device, case.dtype).requires_grad_() for shape in case.shapes
        ]
        self.options: dict[str, Any] = {
            n: t.to(device) if isinstance(t, Tensor) else t for n, t in case.options.items()
        }
        if packed:
            for name, starts in (("q", case.q_starts), ("k", case.k_starts)):
                self.options[f"cu_seqlens_{name}"] = torch.tensor(
                    starts, dtype=torch.int32, device=device
                )
                self.options[f"max_seqlen_{name}"] = max(b - a for a, b in pairwise(starts))

    def attend(self, **options: Any) -> Any:
        """Call `attention`."""
        change = self.case.change(*self.captured)
        given = self.options | options
        return attention(self.q, self.k, self.v, score=change, mask=self.case.mask, **given)

    def check(self, found: Sequence[Tensor]) -> None:
        """Assert that gradients are as near to those of exact weights as those of rounded ones."""
        exact, rounded = self.by_formula(torch.float64), self.by_formula(torch.bfloat16)
        for tensor, got, wanted, rough in zip(self.captured, found, exact, rounded, strict=True):
            assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
            error, allowed = ((x.double() - wanted).abs().max().item() for x in (got, rough))
            size = wanted.abs().max().item()
            assert error <= 2 * allowed + size * 2**-8, (error, allowed, size)
            assert allowed < size / 8

    def by_formula(
        self, precision: torch.dtype, out: Tensor | None = None, of: Change = torch.clone
    ) -> list[Tensor]:
        """The gradients by autograd of float64, with rounded weights. The output is one that is
        given, or rounded as a backward pass gets it. `of` changes the gradients of the scores."""
        leaves = [t.detach().double().requires_grad_() for t in self.captured]
        change, cap = self.case.change(*leaves), self.options.get("softcap")
        for number, (q, do, k, v) in enumerate(self._sequences()):
            s = q @ k.mT / math.sqrt(q.shape[-1])
            if not s.numel():
                continue
            axes = [torch.arange(n, device=self.device) for n in s.shape]
            at = (torch.tensor(number, device=self.device), *torch.meshgrid(*axes, indexing="ij"))
            changed = change(cap * torch.tanh(s / cap) if cap else s, *at)
            hidden = self._hidden(*at)
            p = changed.detach().masked_fill(hidden, -math.inf).softmax(-1).nan_to_num(0)
            p, kept = p.to(precision).double(), self._kept(number, *s.shape)
            rows = (p * kept @ v).to(torch.bfloat16) if out is None else out[number].transpose(0, 1)
            ds = p * ((do @ v.mT) * kept - (do * rows.double()).sum(-1, keepdim=True))
            changed.backward(of(ds))
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    def _hidden(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        left, right = self.options.get("window", (KEYS, KEYS))
        right = 0 if self.options.get("causal") else right
        place = query + query.new_tensor(query.shape[-1] - query.shape[-2])
        hidden: Tensor = (key < place - left) | (key > place + right)
        if self.case.mask is not None:
            hidden |= ~self.case.mask(batch, head, query, key)
        return hidden

    def _kept(self, number: int, heads: int, rows: int, keys: int) -> Tensor | float:
        """What the weights of a sequence are multiplied by."""
        if not (p := self.options.get("dropout_p", 0.0)):
            return 1.0
        kept = dropout_mask(self.options["rng_state"], p, (BATCH, heads, rows, keys))
        share: Tensor = kept[number].double() / (1 - p)
        return share

    def _sequences(self) -> list[tuple[Tensor, ...]]:
        """q, do, k and v of each, (heads, rows, d)."""

        def cut(tensor: Tensor, starts: Sequence[int]) -> Sequence[Tensor]:
            rows = [tensor[a:b] for a, b in pairwise(starts)] if starts else tensor
            each = [t.double().transpose(0, 1) for t in rows]
            return [t.repeat_interleave(HEADS // len(t), 0) for t in each]

        q_starts, k_starts = self.case.q_starts, self.case.k_starts
        of_queries = (cut(t, q_starts) for t in (self.q, self.do))
        return list(zip(*of_queries, *(cut(t, k_starts) for t in (self.k, self.v)), strict=True))

    def forward_pass(self) -> tuple[Tensor, Tensor]:
        """The output and the lse that emulated kernels get."""
        function = Function(self.case.change(*self.captured), self.case.mask)
        call = Forward(self.q, self.k, self.v, function=function, **self.options)
        with torch.no_grad():
            out, lse = evaluate(call, torch.float32, lse=True)
        return out.bfloat16(), lse

    def emulated(
        self, config: str | None, deterministic: bool = False, settings: Settings | None = None
    ) -> tuple[Tensor, ...]:
        """The gradients that emulated kernels compute. The emulator finds nothing."""
        call = Forward(self.q, self.k, self.v, **self.options)
        function = Function(self.case.change(*self.captured), self.case.mask)
        out, lse = self.forward_pass()
        with torch.no_grad():
            slots = function.trained()
            given = call._replace(function=function)
            gathered = gathering_by_kernels(given, slots, config, ALL, deterministic)
            asked = BackwardCall(
                self.do,
                call._replace(function=gathered, out=out),
                lse,
                deterministic=deterministic,
            )
            ran = emulate_backward_plan(Plan(asked, config), asked, settings or Settings())
        assert list(map(str, ran.findings)) == []
        places = {id(t): i for i, t in enumerate(self.captured)}
        found = zip(slots, captured_gradients(gathered), strict=True)
        order = {places[id(function.tensors[slot])]: gradient for slot, gradient in found}
        return tuple(order[i] for i in range(len(self.captured)))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_emulated_kernels_compute_them(name: str) -> None:
    call = Call(CASES[name], "cpu")
    call.check(call.emulated(BACKWARD.format(D)))


@pytest.mark.parametrize("deterministic", [False, True], ids=["", "deterministic"])
@pytest.mark.parametrize(("name", "device"), on_devices(CASES))
def test_autograd_gets_them(name: str, device: str, deterministic: bool) -> None:
    call = Call(CASES[name], device)
    call.q.requires_grad_()
    leaves = (call.q, *call.captured)
    out = call.attend(deterministic=deterministic)
    _, *found = torch.autograd.grad(out, leaves, call.do)
    call.check(found)
    if device == "cuda" and deterministic:
        for _ in range(3):
            again = torch.autograd.grad(call.attend(deterministic=True), leaves, call.do)[1:]
            assert all(map(torch.equal, again, found))


@pytest.mark.slow
def test_deterministic_gradients_have_the_same_bits_in_every_order() -> None:
    call = Call(CASES["biases of some"], "cpu")
    ordered = config(
        D, stages=1, dq="ordered", schedule="serial", order="dynamic_8", tile="64, 128"
    )
    first, second = (
        call.emulated(ordered, deterministic=True, settings=Settings(schedule=each))
        for each in ("lockstep", "random")
    )
    call.check(first)
    assert all(map(torch.equal, first, second))


KINDS = {
    128: ("biases of some", config(128)),  # arithmetic under products
    256: ("derivatives of all kinds", None),  # split products
}


@pytest.mark.slow
@pytest.mark.parametrize("d", KINDS)
def test_other_kinds_of_kernels_compute_them(d: int) -> None:
    name, given = KINDS[d]
    call = Call(CASES[name], "cpu", d)
    call.check(call.emulated(given))


@pytest.mark.slow
@pytest.mark.parametrize("device", HOPPER_DEVICES)
def test_only_captured_tensors_require_grad_and_their_strides_are_any(device: str) -> None:
    call = Call(CASES["a bias of all scores"], device)
    base = call.captured[0].detach()[:1].transpose(2, 3).contiguous().requires_grad_()
    table = torch.randn(HEADS, 2, device=device)[:, :1].requires_grad_()
    shown = torch.zeros(QUERIES, device=device, requires_grad=True)  # which only the mask reads
    bias, slopes = base.transpose(2, 3).expand(BATCH, -1, -1, -1), table.expand(-1, QUERIES)

    def change(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return score + bias[batch, head, query, key] * slopes[head, query]

    def attend(**configs: Any) -> Any:
        mask = lambda batch, head, query, key: shown[query] == 0  # noqa: E731
        return attention(call.q, call.k, call.v, score=change, mask=mask, causal=True, **configs)

    without_dq = BACKWARD.format(D).replace("dq_own_warpgroup+ds_1", "dq_none+ds_0")
    kernels = {"config": FORWARD.format(D), "backward_config": without_dq}
    found = [torch.autograd.grad(attend(**kernels), (base, table), call.do)]
    call.q, call.k, call.v, call.do = (t.cpu() for t in (call.q, call.k, call.v, call.do))
    base, table, shown = (t.detach().cpu().requires_grad_() for t in (base, table, shown))
    bias, slopes = base.transpose(2, 3).expand(BATCH, -1, -1, -1), table.expand(-1, QUERIES)
    found.append(torch.autograd.grad(attend(), (base, table), call.do))
    for kernel, by_torch in zip(*found, strict=True):
        torch.testing.assert_close(kernel.cpu(), by_torch, rtol=0.05, atol=0.02)


def test_a_captured_tensor_that_changed_before_the_backward_pass_is_an_error() -> None:
    call = Call(CASES["slopes"], "cpu")
    out = call.attend()
    with torch.no_grad():
        call.captured[0].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("made", [torch.zeros, torch.inference_mode()(torch.zeros)])
def test_a_tensor_without_a_gradient_that_changed_is_an_error_too(made: Any) -> None:
    q = torch.randn(1, 9, 1, 8, requires_grad=True)
    ids = made(9, dtype=torch.int32)
    out = attention(q, q, q, mask=masks.documents(ids))
    if ids.is_inference():  # whose changes torch does not count
        out.sum().backward()
        return
    ids[4:] = 1
    with pytest.raises(UnsupportedError, match=r"captured tensor 0 .* changed in place"):
        out.sum().backward()


def test_tensors_that_only_a_mask_reads_record_nothing() -> None:
    limit = torch.zeros(QUERIES, requires_grad=True)
    q = torch.randn(1, QUERIES, 1, D)
    out = attention(q, q, q, mask=lambda b, h, query, key: limit[query] + 40.0 > key)
    assert not out.requires_grad


def test_second_derivatives_are_refused() -> None:
    call = Call(CASES["slopes"], "cpu")
    (gradient,) = torch.autograd.grad(
        call.attend().float().square().sum(), call.captured, create_graph=True
    )
    with pytest.raises(UnsupportedError, match="only attention itself is differentiable"):
        gradient.sum().backward()


def test_a_backward_pass_in_a_mode_that_does_not_see_them_is_refused() -> None:
    call = Call(CASES["slopes"], "cpu")
    out = call.attend()
    with (
        FlopCounterMode(display=False),
        pytest.raises(UnsupportedError, match=r"captured tensor 0 .* requires grad, and a transf"),
    ):
        out.backward(call.do)


@pytest.mark.usefixtures("no_compile")
def test_gpus_without_kernels_for_them_refuse_the_forward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = Call(CASES["slopes"], "cpu")
    monkeypatch.setenv("FLASH_ATTENTION_STRICT", "sm_80")
    message = "captured tensor 0 .* requires grad, and sm_80 has no kernels .* which sm_90 and"
    state = torch.get_rng_state()
    for dropout_p in (0.0, 0.5):
        with pytest.raises(UnsupportedError, match=message):
            call.attend(dropout_p=dropout_p)
    assert torch.equal(torch.get_rng_state(), state)
    with torch.no_grad():
        call.attend()
    monkeypatch.setenv("FLASH_ATTENTION_STRICT", "sm_90")
    torch.autograd.grad(call.attend(), call.captured, call.do)


@pytest.mark.usefixtures("no_compile")
def test_a_config_without_ds_in_float32_is_refused() -> None:
    call = Call(CASES["slopes"], "cpu")
    with pytest.raises(UnsupportedError, match=r"Derivative\.PAIRS, which has no dS in float32"):
        call.emulated(BACKWARD.format(D).replace("exact", "pairs"))
