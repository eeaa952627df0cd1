# SPDX-License-Identifier: Apache-2.0
"""BackwardCall: the tensors and the options of one backward pass."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor

from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.call.results import new_gradient
from flash_attention.call.tensors import ALIGNMENT
from flash_attention.errors import UnsupportedError


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

    def kind_and_tensors(self) -> tuple[tuple[object, ...], tuple[Tensor, ...]]:
        """What a plan of this call is noted by: its options and sizes, and its tensors."""
        do, (q, k, v, out, a, b, c, d, *others), lse, dlse, wanted, deterministic = self
        tensors: tuple[Any, ...] = (do, q, k, v, out, lse)
        given: tuple[bool, ...] = ()
        if not (a is b is c is d is dlse is None):  # sinks, lengths, and the gradient of lse
            given = tuple(t is not None for t in (a, b, c, d, dlse))
            tensors += tuple(t for t in (a, b, c, d, dlse) if t is not None)
        kind = (do.numel(), k.numel(), given, *others, wanted, deterministic)
        return kind, tensors


@dataclass(frozen=True)
class BackwardProblem(Problem):
    """The problem of the forward call, and which gradients are computed."""

    wanted: Wanted = ALL
    deterministic: bool = False

    @property
    def idle(self) -> bool:
        """Whether every gradient of q, k and v is 0, as packed rows may belong to no sequence."""
        return super().idle or 0 in (self.seq_q, self.seq_k)

    @classmethod
    def of_pass(
        cls, problem: Problem, wanted: Wanted = ALL, deterministic: bool = False
    ) -> BackwardProblem:
        """Make the problem of the backward pass of a problem."""
        values = {field.name: getattr(problem, field.name) for field in fields(Problem)}
        return cls(**values, wanted=wanted, deterministic=deterministic)


def backward_call_of(
    do: Tensor,
    call: Call,
    lse: Tensor,
    dlse: Tensor | None,
    wanted: Wanted,
    deterministic: bool,
) -> BackwardCall:
    """Make a backward call of gradients and saved tensors as autograd passes them: gradients may
    have any strides, and hooks may have moved saved tensors. What kernels cannot read is copied.

    Raises UnsupportedError for a batch of gradients (`is_grads_batched`), which has no memory.

    It is deterministic if that is asked for here or by torch.use_deterministic_algorithms.
    """
    if is_legacy_batchedtensor(do) or (dlse is not None and is_legacy_batchedtensor(dlse)):
        raise UnsupportedError(
            "the gradients of several outputs are asked for at once (is_grads_batched or"
            " vectorize=True); call torch.func.vmap of torch.func.vjp, or torch.func.jacrev"
        )
    if not (_readable(do) and _is_unshared(do)):
        do = do.clone(memory_format=torch.contiguous_format)
    tensors = [t if t is None or _readable(t) else _copied(t) for t in call[:4]]
    vectors = [None if t is None else t.contiguous() for t in call[4:8]]
    if dlse is not None:
        dlse = dlse.contiguous().resolve_neg()
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    readable = Call._make((*tensors, *vectors, *call[8:]))
    return BackwardCall(do, readable, lse.contiguous(), dlse, wanted, deterministic)


def _readable(tensor: Tensor) -> bool:
    """Whether kernels can read a tensor: every row is contiguous, and starts on 16 bytes."""
    if tensor.data_ptr() % ALIGNMENT or tensor.is_neg() or tensor.stride(-1) != 1:
        return False
    elements = ALIGNMENT // tensor.itemsize
    rows = zip(tensor.shape[:-1], tensor.stride(), strict=False)
    return tensor.is_contiguous() or all(n == 1 or stride % elements == 0 for n, stride in rows)


def _is_unshared(do: Tensor) -> bool:
    """Whether a gradient has a row for every query."""
    return do.is_contiguous() or 0 not in do.stride()


def _copied(tensor: Tensor) -> Tensor:
    """Return a copy of a saved tensor. Its gradient has the same strides as that of the tensor."""
    return new_gradient(tensor).copy_(tensor)
