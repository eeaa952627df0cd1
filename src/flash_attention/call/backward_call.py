# SPDX-License-Identifier: Apache-2.0
"""BackwardCall: the tensors and the options of one backward pass."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from torch import Tensor

from flash_attention.call.call import Call, Noted
from flash_attention.call.function import Function
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
            lse.is_neg(),
            None
            if dlse is None
            else (dlse.shape, dlse.stride(), dlse.dtype, dlse.device, dlse.is_neg()),
            wanted,
            deterministic,
        )

    def kind_and_tensors(self, with_lse: bool = False) -> Noted:
        """What a plan of this pass is noted by, as of a call. `with_lse` is for those alone."""
        do, call, lse, dlse, wanted, deterministic = self
        if isinstance(call.function, Function):
            call = call.keyed()
        q, k, v, out, a, b, c, d, r, *others = call
        if b is c is d is None:
            tensors: tuple[Any, ...] = (do, q, k, v, out, lse)
            if not (a is r is dlse is None):
                tensors += tuple(t for t in (a, r, dlse) if t is not None)
            given = (a is None, r is None, dlse is None)
            return (do.numel(), k.numel(), *given, *others, wanted, deterministic), tensors, None
        kind, of_call, lengths = call.kind_and_tensors()
        assert lengths is not None
        own = [do, lse] if dlse is None else [do, lse, dlse]
        strides = [t.stride() for t in own[1:]]
        return (
            (kind, dlse is None, wanted, deterministic),
            [*of_call, *own],
            (*lengths, *[t.numel() for t in own], *strides),
        )

    def tensors(self) -> dict[str, Tensor]:
        """The given tensors by name."""
        own = {"do": self.do, "lse": self.lse, "dlse": self.dlse}
        return self.call.tensors() | {n: t for n, t in own.items() if t is not None}

    def has_rows_of(self, problem: Problem) -> bool:
        """Whether the gradient and the log-sum-exp have the rows of a problem."""
        of_rows = [self.lse] if self.dlse is None else [self.lse, self.dlse]
        return self.do.shape[0] == problem.first_sizes[0] and all(
            t.shape == problem.lse_shape and t.is_contiguous() for t in of_rows
        )


@dataclass(frozen=True)
class BackwardProblem(Problem):
    """The problem of the forward call, and which gradients are computed."""

    wanted: Wanted = ALL
    deterministic: bool = False

    @property
    def idle(self) -> bool:
        """Whether every gradient of q, k and v is 0, as packed rows may belong to no sequence."""
        return super().idle or 0 in (self.seq_q, self.seq_k)

    @property
    def gathers(self) -> bool:
        """Whether gradients of captured tensors are computed."""
        return self.program is not None and bool(self.program.gathered)

    @property
    def gathers_by_lanes(self) -> bool:
        """Whether some of these need dS in float32, because lanes add it up."""
        return self.program is not None and bool(self.program.by_lanes)

    def with_lengths_of(self, problem: Problem) -> BackwardProblem:
        """Make the problem of the same pass of a forward problem that differs in lengths alone."""
        made = object.__new__(BackwardProblem)
        own = {"wanted": self.wanted, "deterministic": self.deterministic, "return_max": False}
        object.__setattr__(made, "__dict__", {**vars(problem), **own})
        return made

    @classmethod
    def of_pass(
        cls, problem: Problem, wanted: Wanted = ALL, deterministic: bool = False
    ) -> BackwardProblem:
        """Make the problem of the backward pass of a problem."""
        values = {field.name: getattr(problem, field.name) for field in fields(Problem)}
        values["return_max"] = False  # which gradients do not depend on
        return cls(**values, wanted=wanted, deterministic=deterministic)
