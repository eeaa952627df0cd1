# SPDX-License-Identifier: Apache-2.0
"""TangentCall: a call of attention, and the tangents of its q, k and v."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from flash_attention.call.call import Call, Noted
from flash_attention.call.checks import check_call
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.errors import UnsupportedError


class TangentCall(NamedTuple):
    """One derivative in forward mode, by all of q, k and v."""

    call: Call
    q_tangent: Tensor
    k_tangent: Tensor
    v_tangent: Tensor

    def key(self) -> tuple[object, ...]:
        """Everything that a plan depends on. Calls with the same key differ only in their data."""
        tangents = ((t.shape, t.stride(), t.dtype, t.device, t.is_neg()) for t in self[1:])
        return self.call.key(), *tangents

    def kind_and_tensors(self, with_lse: bool = False) -> Noted:
        """What a plan of this pass is noted by, as of a call. Its sequences have one length."""
        kind, tensors, _ = self.call.kind_and_tensors()
        return (*kind, "tangent"), (*tensors, *self[1:]), None

    def tensors(self) -> dict[str, Tensor]:
        """The given tensors by name."""
        return self.call.tensors() | self.tangents()

    def tangents(self) -> dict[str, Tensor]:
        """The tangents by name."""
        return dict(zip(self._fields[1:], self[1:], strict=True))


class WithTangent(NamedTuple):
    """The results of a call, and their tangents."""

    o: Tensor
    lse: Tensor
    o_tangent: Tensor
    lse_tangent: Tensor


@dataclass(frozen=True)
class TangentProblem(Problem):
    """The problem of a call whose tangent is computed as well."""

    @classmethod
    def of_pass(cls, problem: Problem) -> TangentProblem:
        """Make the problem of the tangent of a problem."""
        return cls(**vars(problem))

    def __str__(self) -> str:
        return f"{super().__str__()}, with tangents"


def check_tangent_call(asked: TangentCall) -> tuple[TangentProblem, list[TensorView]]:
    """Check a call with tangents that a kernel is to run. Returns its problem, and q, k, v, the
    output and the three tangents. The families say whether they take these."""
    check_has_tangent(asked.call)
    problem, views = check_call(asked.call)
    views += [TensorView.of(name, tangent) for name, tangent in asked.tangents().items()]
    return TangentProblem.of_pass(problem), views


def views_with_tangents(views: Sequence[TensorView]) -> list[TensorView]:
    """Return views of q, k, v and the output, and those of tangents with the same strides."""
    names = zip(TangentCall._fields[1:], views, strict=False)
    return [*views, *(replace(view, name=name) for name, view in names)]


def check_has_tangent(call: Call) -> None:
    """Raise UnsupportedError for a call without a derivative in forward mode, on any device."""
    given = {
        "out": call.out is not None,
        "sinks": call.sinks is not None,
        "cu_seqlens_q": call.cu_seqlens_q is not None,
        "cu_seqlens_k": call.cu_seqlens_k is not None,
        "seqused_k": call.seqused_k is not None,
        "block_table": call.block_table is not None,
        "k_descale": call.k_descale is not None,
        "dropout_p": bool(call.dropout_p),
        "a score or mask function": call.function is not None,
        "split_keys": call.split_keys is not None,
        "return_max": bool(call.return_max),
    }
    for name, is_given in given.items():
        if is_given:
            raise UnsupportedError(
                f"a tensor has a tangent and {name} is given, and the forward-mode derivative is"
                " that of dense q, k and v alone; leave it out, or pass"
                " torch.autograd.forward_ad.unpack_dual(q).primal, and the same of k and v"
            )
