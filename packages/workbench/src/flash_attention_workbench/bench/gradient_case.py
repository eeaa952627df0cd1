# SPDX-License-Identifier: Apache-2.0
"""A point of a grid with the tensors of its backward pass, our contenders, and the judge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from flash_attention.attention import attention
from flash_attention.call.backward_call import BackwardCall, Gradients
from flash_attention.call.call import Call
from flash_attention.kernel_configs import DType, KernelConfig
from flash_attention.launch.compute import compute_gradients
from flash_attention.launch.plan import Plan
from flash_attention.launch.plans import plan_for
from flash_attention.reference.gradient_judge import GradientJudge
from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.grid import Measured, Point
from flash_attention_workbench.bench.timing import Contender

SEED = 1  # of the gradient of the output
CHECKED_SCORES = 1 << 28

Forward = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention that autograd records."""


@dataclass(frozen=True, eq=False)
class GradientCase:
    """One problem in memory, with the results of its forward pass and the gradient of one."""

    case: Case
    out: Tensor
    lse: Tensor
    do: Tensor
    measured: Measured

    @classmethod
    def of(
        cls, point: Point, dtype: DType, measured: Measured, device: torch.device | str = "cpu"
    ) -> GradientCase:
        """Normally distributed q, k, v and do, and the output and the lse of `attention`."""
        case = Case.of(point, dtype, device)
        out, lse = attention(case.q, case.k, case.v, return_lse=True, **case.keywords)
        generator = torch.Generator(device).manual_seed(SEED)
        do = torch.randn(out.shape, generator=generator, device=device).to(out.dtype)
        return cls(case, out, lse, do, measured)

    @property
    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v that require grad, without memory of their own."""
        q, k, v = (t.detach().requires_grad_() for t in (self.case.q, self.case.k, self.case.v))
        return q, k, v

    def call(self, deterministic: bool = False) -> BackwardCall:
        """Return the backward pass of this case."""
        case = self.case
        forward = Call(case.q, case.k, case.v, self.out, **case.keywords)
        return BackwardCall(self.do, forward, self.lse, deterministic=deterministic)

    def plan(self, deterministic: bool = False) -> Plan:
        """Return what a backward pass of this case launches."""
        return plan_for(self.call(deterministic))

    def ours(self, name: str, *, deterministic: bool = False) -> Contender:
        """Return the contender that a training call runs."""
        if self.measured is Measured.TRAINING:
            forward = partial(attention, deterministic=deterministic, **self.case.keywords)
            return self.recorded(name, forward)
        return pass_contender(name, self.call(deterministic))

    def kernel(self, config: KernelConfig) -> Contender:
        """Return the contender for a given config, named by its short form."""
        name = config.short_form()
        if self.measured is Measured.TRAINING:
            forward = partial(attention, backward_config=config, **self.case.keywords)
            return self.recorded(name, forward)
        return pass_contender(name, self.call(), config)

    def recorded(self, name: str, forward: Forward) -> Contender:
        """Return the contender of a function that autograd records: its backward pass alone, or
        both passes. The result of `forward` is like o."""
        leaves = self.leaves

        def gradients(out: Tensor, retain: bool) -> Gradients:
            return Gradients(*torch.autograd.grad(out, leaves, self.do, retain_graph=retain))

        if self.measured is Measured.TRAINING:
            return Contender(name, lambda: gradients(forward(*leaves), False))
        out = forward(*leaves)
        return Contender(name, lambda: gradients(out, True))

    def judge(self) -> GradientJudge:
        call = self.call().call
        return GradientJudge(call, self.do, scores=CHECKED_SCORES)


def pass_contender(
    name: str,
    call: BackwardCall,
    config: KernelConfig | None = None,
    into: Gradients | None = None,
) -> Contender:
    """Return the contender that launches all kernels of a backward pass, and nothing else. On a GPU
    it stores `into` gradients that others may share, or into its own."""
    if not call.do.is_cuda:
        return Contender(name, lambda: compute_gradients(call, config))
    plan = plan_for(call, config)
    arguments, gradients = plan.prepare(call, into)

    def run() -> Gradients:
        plan.launch(call, arguments, gradients)
        return gradients

    return Contender(name, run, poison=lambda: poison(gradients))


def poison(gradients: Iterable[Tensor | None]) -> None:
    """Fill gradients with NaN."""
    for gradient in gradients:
        if gradient is not None:
            gradient.fill_(math.nan)
