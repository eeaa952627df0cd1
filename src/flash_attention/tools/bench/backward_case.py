# SPDX-License-Identifier: Apache-2.0
"""The backward pass of a case: its call, the kernels and FlashAttention-2 as contenders."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from flash_attention.attention import attention
from flash_attention.call.backward_call import BackwardCall, Gradients
from flash_attention.call.call import Call
from flash_attention.kernel_configs import KernelConfig
from flash_attention.launch.backward import BackwardPlan
from flash_attention.tools.bench.case import Case
from flash_attention.tools.bench.timing import Contender

PRODUCTS = 5 / 2  # of the backward pass, for each of the forward pass
SEED = 1  # of the gradient of the output


@dataclass(frozen=True, eq=False)
class BackwardCase:
    """A case without packed sequences, its output and lse, and a gradient of the output."""

    case: Case
    call: BackwardCall

    @classmethod
    def of(cls, case: Case) -> BackwardCase:
        """Run the forward pass, and draw a normally distributed gradient."""
        keywords = case.keywords
        out, lse = attention(case.q, case.k, case.v, return_lse=True, **keywords)
        call = Call(case.q, case.k, case.v, out, **keywords)
        return cls(case, BackwardCall(normal_like(out), call, lse))

    @property
    def flop(self) -> int:
        """10 b h sq sk d, less half of what a causal mask cuts, as everyone counts."""
        return int(self.case.point.flop * PRODUCTS)

    def kernel(self, config: KernelConfig) -> Contender:
        """The contender for a given config, all of its kernels together."""
        plan = BackwardPlan(self.call, config)
        arguments, gradients = plan.prepare(self.call)

        def run() -> Gradients:
            plan.launcher.launch(arguments)
            return gradients

        def poison() -> None:
            for gradient in gradients:
                if gradient is not None:
                    gradient.fill_(math.nan)

        return Contender(config.short_form(), run, poison)

    def flash_attention_2(self, name: str) -> Contender:
        """torch's SDPA with its FlashAttention-2 backend, the backward pass alone."""
        case = self.case
        q, k, v = (t.transpose(1, 2).detach().requires_grad_() for t in (case.q, case.k, case.v))
        shared = case.point.kv_heads != case.point.heads
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = scaled_dot_product_attention(
                q, k, v, is_causal=case.point.causal, enable_gqa=shared
            )
        gradient = self.call.do.transpose(1, 2)

        def run() -> Gradients:
            found = torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)
            return Gradients(*(one.transpose(1, 2) for one in found))

        return Contender(name, run)


def normal_like(out: Tensor) -> Tensor:
    """A normally distributed gradient of an output, the same every time."""
    generator = torch.Generator(out.device).manual_seed(SEED)
    drawn = torch.randn(out.shape, generator=generator, device=out.device)
    return drawn.to(out.dtype)
