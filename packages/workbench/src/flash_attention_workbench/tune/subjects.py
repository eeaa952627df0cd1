# SPDX-License-Identifier: Apache-2.0
"""Problems in memory: their tensors, contenders of given configs, and the judge of results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from flash_attention.arch import Arch
from flash_attention.call.backward_call import BackwardCall, Gradients
from flash_attention.call.call import Call
from flash_attention.call.results import new_gradient
from flash_attention.call.tangent_call import TangentCall, WithTangent
from flash_attention.choose.dense import (
    DenseBackwardProblem,
    DenseProblem,
    DenseTangentProblem,
)
from flash_attention.choose.heuristic import select_config
from flash_attention.forward import forward
from flash_attention.kernel_configs import KernelConfig
from flash_attention.reference.gradient_judge import GradientJudge
from flash_attention.reference.judge import Check, generate_qkvo
from flash_attention.reference.part_judge import PartJudge
from flash_attention.reference.tangent_judge import TangentJudge, random_tangents
from flash_attention_workbench.bench.gradient_case import CHECKED_SCORES, pass_contender
from flash_attention_workbench.bench.tangent_case import tangent_contender
from flash_attention_workbench.bench.timing import Contender
from flash_attention_workbench.gradient_check import random_gradients_of


class Subject(Protocol):
    """A problem in memory, which contenders take turns at."""

    judged_first: ClassVar[bool]
    """Whether every contender is judged before it is timed, and not only those of a final."""

    def contender(self, config: KernelConfig) -> Contender:
        """Return the contender of a config, named by its short form."""

    def fault(self, result: Any) -> str | None:
        """Say what is wrong with what a contender returned; None if it is right."""


def subject_of(problem: DenseProblem, device: torch.device, arch: Arch) -> Subject:
    """Make the tensors of a problem of any pass."""
    if isinstance(problem, DenseBackwardProblem):
        return BackwardSubject.of(problem, device, arch)
    q, k, v, o = _tensors(problem, device)
    if isinstance(problem, DenseTangentProblem):
        call = Call(q, k, v, causal=problem.causal)
        return TangentSubject(TangentCall(call, *random_tangents(q, k, v)))
    return ForwardSubject(problem, q, k, v, o)


@dataclass(frozen=True, eq=False)
class ForwardSubject:
    """Attention of random tensors."""

    problem: DenseProblem
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor

    judged_first: ClassVar[bool] = False

    def contender(self, config: KernelConfig) -> Contender:
        return Contender(
            config.short_form(),
            run=lambda: forward(config, self.q, self.k, self.v, self.o, causal=self.problem.causal),
            poison=lambda: self.o.fill_(torch.nan),
        )

    def fault(self, result: Tensor) -> str | None:
        verdict = self._judge.check(result)
        return None if verdict.ok else str(verdict)

    @cached_property
    def _judge(self) -> PartJudge:
        return PartJudge(self.q, self.k, self.v, causal=self.problem.causal)


@dataclass(frozen=True, eq=False)
class BackwardSubject:
    """The backward pass of random tensors, with all of its kernels. Contenders share the memory of
    the gradients."""

    call: BackwardCall
    gradients: Gradients
    judge: GradientJudge

    judged_first: ClassVar[bool] = True

    @classmethod
    def of(cls, problem: DenseBackwardProblem, device: torch.device, arch: Arch) -> BackwardSubject:
        """Run the forward pass with the heuristic's config, so that it is not tuned on the way."""
        q, k, v, o = _tensors(problem, device)
        config = select_config(problem.forward.problem, arch)
        o, lse = forward(config, q, k, v, o, causal=problem.causal, return_lse=True)
        do, _ = random_gradients_of(o, None)
        call = Call(q, k, v, o, causal=problem.causal)
        judge = GradientJudge(call, do, wanted=problem.wanted, scores=CHECKED_SCORES)
        asked = BackwardCall(do, call, lse, None, problem.wanted, problem.deterministic)
        gradients = (
            new_gradient(tensor) if wanted else None
            for tensor, wanted in zip((q, k, v), problem.wanted, strict=False)
        )
        return cls(asked, Gradients(*gradients), judge)

    def contender(self, config: KernelConfig) -> Contender:
        return pass_contender(config.short_form(), self.call, config, self.gradients)

    def fault(self, result: Gradients) -> str | None:
        return _faults(self.judge.check(result))


@dataclass(frozen=True, eq=False)
class TangentSubject:
    """Attention of random tensors, and the tangent of its output."""

    call: TangentCall

    judged_first: ClassVar[bool] = False

    def contender(self, config: KernelConfig) -> Contender:
        return tangent_contender(config.short_form(), self.call, config)

    def fault(self, result: WithTangent) -> str | None:
        return _faults(self._judge.check(result))

    @cached_property
    def _judge(self) -> TangentJudge:
        return TangentJudge(self.call)


def _faults(checks: Mapping[str, Check]) -> str | None:
    wrong = [f"{name} is {check}" for name, check in checks.items() if not check.ok]
    return "; ".join(wrong) or None


def _tensors(problem: DenseProblem, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return generate_qkvo(
        *(problem.batch, problem.seq_q, problem.heads, problem.d_head, problem.dtype, device),
        seq_len_k=problem.seq_k,
        n_heads_k=problem.heads_k,
        d_v=problem.d_v,
    )
