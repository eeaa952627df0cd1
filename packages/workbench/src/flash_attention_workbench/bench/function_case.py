# SPDX-License-Identifier: Apache-2.0
"""A point of the grid of functions in memory: its contenders, and the judge of their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from flash_attention.attention import attention
from flash_attention.call.backward_call import BackwardCall, Gradients
from flash_attention.call.call import Call
from flash_attention.errors import UnsupportedError
from flash_attention.reference.gradient_judge import GradientJudge
from flash_attention.reference.judge import (
    ERROR_FACTOR,
    Check,
    Judge,
    generate_qkv,
    rounding_step,
)
from flash_attention_workbench.bench.functions import KINDS, Drawn, FunctionPoint, Kind
from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.peers.flex_functions import (
    FLEX,
    compiled_flex,
    kept_graphs,
)
from flash_attention_workbench.bench.timing import Contender

OURS, BUILT_IN = "ours", "built-in"
CONTENDERS = (OURS, BUILT_IN, FLEX)
CHECKED_SCORES = {Measured.FORWARD: 1 << 29, Measured.BACKWARD: 1 << 28}  # about so many
FEWEST_HEADS = 2
ALL_SCORES = 1 << 62  # of what is given to a judge
WITHOUT_BIAS = "dq, dk and dv, without the gradient of the bias"

Attend = Callable[..., Tensor]
"""Attention of q, k and v, and of a bias that has a gradient."""


@dataclass(frozen=True, eq=False)
class FunctionCase:
    """One problem in memory: q, k, v and the gradient of the output are (batch, seq, heads, d)."""

    point: FunctionPoint
    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    drawn: Drawn
    has_bias_gradient: bool = False  # it is measured with the other gradients

    @classmethod
    def of(cls, point: FunctionPoint, device: torch.device | str = "cpu") -> FunctionCase:
        """Normally distributed tensors."""
        sizes = (point.batch, point.seq_len, point.heads, point.d_head, torch.bfloat16, device)
        q, k, v = generate_qkv(*sizes)
        do, _, _ = generate_qkv(*sizes, seed=1)
        case = cls(point, q, k, v, do, Drawn.of(point, device))
        backward = point.measured is Measured.BACKWARD
        return replace(case, has_bias_gradient=backward and case._bias_is_differentiable())

    @property
    def kind(self) -> Kind:
        return KINDS[self.point.function]

    @property
    def note(self) -> str:
        """What is to be said of the measured pass."""
        backward = self.point.measured is Measured.BACKWARD
        without = backward and self.kind.captures_bias and not self.has_bias_gradient
        return WITHOUT_BIAS if without else ""

    @property
    def flop(self) -> int:
        """Those of the keys that queries see; the gradient of a bias takes none of its own."""
        scores = self.kind.cells(self.drawn) * self.point.heads
        return round(4 * scores * self.point.d_head * self.point.measured.value)

    def _bias_is_differentiable(self) -> bool:
        """Whether a call with a bias that requires grad is accepted. A small one is tried."""
        if self.drawn.bias is None:
            return False
        rows = min(self.point.seq_len, 128)
        leaf = self.drawn.bias[:, :rows, :rows].detach().clone().requires_grad_()
        small = [tensor[:1, :rows].contiguous() for tensor in (self.q, self.k, self.v)]
        try:
            attention(*small, function=self.kind.function(replace(self.drawn, bias=leaf)))
        except UnsupportedError:
            return False
        return True

    def contender(self, name: str) -> Contender:
        """Return a contender. Raises UnsupportedError if there is none for this function."""
        if name == FLEX:
            return self._flex()
        if name == OURS:
            return self._ours(name, self._with_function, (self.q, self.k, self.v), self.do)
        return self._built_in()

    def forward_call(self, name: str) -> Call:
        """Return the call of ours, or of the built-in kernel, without its output."""
        if name == OURS:
            return Call(self.q, self.k, self.v, function=self.kind.function(self.drawn))
        if self.kind.built_in is None:
            raise UnsupportedError("no built-in kernel computes this")
        keywords = self.kind.built_in(self.drawn)
        q, k, v = (self._as_built_in(tensor) for tensor in (self.q, self.k, self.v))
        return Call(q, k, v, **keywords)

    def backward_call(self, name: str) -> BackwardCall:
        """Return the pass of the same, whose output and lse have no values."""
        call = self.forward_call(name)
        shape = (*call.q.shape[:-3], call.q.shape[-2], call.q.shape[-3])
        lse = torch.empty(shape, dtype=torch.float32, device=call.q.device)
        do = self._as_built_in(self.do) if name == BUILT_IN else self.do
        return BackwardCall(do, call._replace(out=torch.empty_like(call.q)), lse)

    def _with_function(self, q: Tensor, k: Tensor, v: Tensor, *bias: Tensor) -> Attend:
        drawn = replace(self.drawn, bias=bias[0]) if bias else self.drawn
        function = self.kind.function(drawn)
        return lambda **more: attention(q, k, v, function=function, **more)

    def _built_in(self) -> Contender:
        call = self.forward_call(BUILT_IN)
        keywords = call.keywords()

        def attend(q: Tensor, k: Tensor, v: Tensor, *bias: Tensor) -> Attend:
            return lambda **more: attention(q, k, v, **keywords, **more)

        plain = replace(self, has_bias_gradient=False)
        return plain._ours(BUILT_IN, attend, call[:3], self._as_built_in(self.do))

    def _as_built_in(self, tensor: Tensor) -> Tensor:
        """Documents are packed sequences of the built-in kernels."""
        return tensor.flatten(0, 1) if self.point.function == "documents" else tensor

    def _ours(
        self,
        name: str,
        attend: Callable[..., Attend],
        tensors: Sequence[Tensor],
        do: Tensor,
    ) -> Contender:
        shape = self.q.shape
        if self.point.measured is Measured.FORWARD:
            call, out = attend(*tensors), torch.empty_like(tensors[0])
            return Contender(
                name,
                run=lambda: call(out=out).view(shape),
                poison=lambda: out.fill_(math.nan),
            )
        leaves = self._leaves(tensors)
        return recorded(name, attend(*leaves)(), leaves, do, lambda t: t.view(shape))

    def _flex(self) -> Contender:
        q, k, v, do = (t.transpose(1, 2).contiguous() for t in (self.q, self.k, self.v, self.do))
        if self.point.measured is Measured.FORWARD:
            attend = compiled_flex(self.point.function, self.drawn, compiled=self.q.is_cuda)
            return Contender(FLEX, lambda: attend(q, k, v).transpose(1, 2))
        leaves = self._leaves((q, k, v))
        drawn = replace(self.drawn, bias=leaves[3]) if self.has_bias_gradient else self.drawn
        attend = compiled_flex(self.point.function, drawn, compiled=self.q.is_cuda)
        with kept_graphs():
            out = attend(*leaves[:3])
            contender = recorded(FLEX, out, leaves, do, lambda t: t.transpose(1, 2))
            contender.run()  # compiles
        return contender

    def _leaves(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        given = [*tensors]
        if self.has_bias_gradient:
            assert self.drawn.bias is not None
            given.append(self.drawn.bias)
        return [tensor.detach().requires_grad_() for tensor in given]

    def judge(self) -> FunctionJudge:
        return FunctionJudge(self)


def recorded(
    name: str,
    out: Tensor,
    leaves: Sequence[Tensor],
    do: Tensor,
    arranged: Callable[[Tensor], Tensor],
) -> Contender:
    """Return the contender of a backward pass that autograd recorded. `arranged` makes gradients of
    q, k and v (batch, seq, heads, d)."""

    def run() -> list[Tensor]:
        found = torch.autograd.grad(out, leaves, do, retain_graph=True)
        return [*map(arranged, found[:3]), *found[3:]]

    def poison() -> None:  # gradients get the memory that these give back
        _ = [torch.full_like(leaf, math.nan) for leaf in leaves]

    return Contender(name, run, poison)


class FunctionJudge:
    """Checks outputs or gradients in some heads against float64, by the rule of `Judge`. In the
    other heads there may be no NaN."""

    def __init__(self, case: FunctionCase) -> None:
        point = case.point
        self._forward = point.measured is Measured.FORWARD
        affordable = CHECKED_SCORES[point.measured] // (point.batch * point.seq_len**2)
        count = min(point.heads, max(FEWEST_HEADS, affordable))
        places = torch.linspace(0, point.heads - 1, count, dtype=torch.float64)
        self.heads = [int(place) for place in places.round()]
        drawn = case.drawn.of_heads(self.heads)
        q, k, v, do = (t[:, :, self.heads] for t in (case.q, case.k, case.v, case.do))
        function = case.kind.function(drawn)
        self._bias_judge: _BiasJudge | None = None
        if self._forward:
            self._judge = Judge(q, k, v, function=function)
            return
        call = Call(q, k, v, function=function)
        self._gradients = GradientJudge(call, do, scores=ALL_SCORES)
        if case.has_bias_gradient:
            assert drawn.bias is not None
            self._bias_judge = _BiasJudge((q, k, v, do), drawn.bias)

    def check(self, result: Tensor | Sequence[Tensor]) -> Mapping[str, Check]:
        """Check an output, or gradients in the order of q, k, v and a bias."""
        if isinstance(result, Tensor):
            check = self._judge.check(result[:, :, self.heads])
            return {"out": self._without_nan(check, result)}
        some = Gradients(*(gradient[:, :, self.heads] for gradient in result[:3]))
        checks = self._gradients.check(some)
        named = dict(zip(("dq", "dk", "dv"), result, strict=False))
        checks = {name: self._without_nan(checks[name], named[name]) for name in checks}
        if self._bias_judge is not None:
            (dbias,) = result[3:]
            checks["dbias"] = self._without_nan(self._bias_judge.check(dbias[self.heads]), dbias)
        return checks

    def _without_nan(self, check: Check, whole: Tensor) -> Check:
        if not bool(whole.isnan().any()):
            return check
        return replace(
            check, error=math.nan, worst_index=tuple(map(int, whole.isnan().nonzero()[0]))
        )


class _BiasJudge:
    """Checks the gradient of a bias in float64: that of the scores, summed over the batch."""

    def __init__(self, tensors: Sequence[Tensor], bias: Tensor) -> None:
        self._exact, in_16_bits = (
            torch.stack([_bias_gradient(tensors, bias, head, dtype) for head in range(len(bias))])
            for dtype in (torch.float64, bias.dtype)
        )
        self._error = float((in_16_bits - self._exact).abs().max())
        self._allowed = ERROR_FACTOR * self._error + rounding_step(self._exact.to(bias.dtype))

    def check(self, given: Tensor) -> Check:
        error = (given.double() - self._exact).abs()
        worst = int(error.argmax())
        return Check(
            error=float(error.flatten()[worst]),
            reference_error=self._error,
            allowed=self._allowed,
            worst_index=tuple(int(i) for i in np.unravel_index(worst, given.shape)),
            value=float(given.flatten()[worst]),
            exact=float(self._exact.flatten()[worst]),
            mismatched=given.numel() - int((error <= self._allowed).sum()),
            elements=given.numel(),
        )


def _bias_gradient(
    tensors: Sequence[Tensor], bias: Tensor, head: int, dtype: torch.dtype
) -> Tensor:
    """Return the gradient of the bias of one head, every step rounded to `dtype`."""
    leaf = bias[head].detach().to(dtype).requires_grad_()
    for q, k, v, do in zip(*(tensor[:, :, head].to(dtype) for tensor in tensors), strict=True):
        scores = q @ (k * q.shape[-1] ** -0.5).T + leaf
        (torch.softmax(scores, -1) @ v).backward(do)
    assert leaf.grad is not None
    return leaf.grad
