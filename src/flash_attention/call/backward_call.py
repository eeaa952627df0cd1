# SPDX-License-Identifier: Apache-2.0
"""BackwardCall: the tensors and the options of one backward pass."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.problem import Problem


class Wanted(NamedTuple):
    """Which gradients are computed."""

    dq: bool = True
    dk: bool = True
    dv: bool = True
    dsinks: bool = False


ALL = Wanted()


class Gradients(NamedTuple):
    """The gradients of one call. Those that were not wanted are None."""

    dq: Tensor | None = None
    dk: Tensor | None = None
    dv: Tensor | None = None
    dsinks: Tensor | None = None


class BackwardCall(NamedTuple):
    """One backward pass: the gradients of a forward call, whose `out` is its result."""

    do: Tensor  # the gradient of the output
    call: Call
    lse: Tensor
    dlse: Tensor | None = None  # the gradient of lse; None means zero
    wanted: Wanted = ALL
    deterministic: bool = False

    def key(self) -> tuple[object, ...]:
        """Everything that a plan depends on. Calls with the same key differ only in their data."""
        do, call, lse, dlse, wanted, deterministic = self
        return (
            call.key(),
            do.shape,
            do.stride(),
            do.dtype,
            do.device,
            do.is_neg(),
            lse.shape,
            lse.stride(),
            lse.dtype,
            lse.device,
            None if dlse is None else (dlse.shape, dlse.stride(), dlse.dtype, dlse.device),
            wanted,
            deterministic,
        )


@dataclass(frozen=True)
class BackwardProblem(Problem):
    """The problem of the forward call, and which gradients are computed."""

    wanted: Wanted = ALL
    deterministic: bool = False

    @classmethod
    def of_pass(
        cls, problem: Problem, wanted: Wanted = ALL, deterministic: bool = False
    ) -> BackwardProblem:
        """Make the problem of the backward pass of a problem."""
        values = {field.name: getattr(problem, field.name) for field in fields(Problem)}
        return cls(**values, wanted=wanted, deterministic=deterministic)
