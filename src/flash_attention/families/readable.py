# SPDX-License-Identifier: Apache-2.0
"""What autograd passes to a backward pass, or a transform with tangents, made readable."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor

from flash_attention.call.backward_call import BackwardCall, Wanted
from flash_attention.call.call import Call
from flash_attention.call.results import new_gradient
from flash_attention.call.tangent_call import TangentCall
from flash_attention.errors import UnsupportedError
from flash_attention.families.fit import ALIGNMENT


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
    do = as_readable(do)
    tensors = [t if t is None or _readable(t) else _copied(t) for t in call[:4]]
    vectors = [None if t is None else t.contiguous() for t in call[4:9]]
    if dlse is not None:
        dlse = dlse.contiguous().resolve_neg()
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    readable = Call._make((*tensors, *vectors, *call[9:]))
    return BackwardCall(do, readable, lse.contiguous(), dlse, wanted, deterministic)


def tangent_call_of(asked: TangentCall) -> TangentCall:
    """Return a call with tangents as transforms pass it, or one of copies that kernels can read."""
    call, *tangents = asked
    readable = Call._make((*map(as_readable, call[:3]), *call[3:]))
    return TangentCall(readable, *map(as_readable, tangents))


def as_readable(tensor: Tensor) -> Tensor:
    """Return a tensor, or a copy of it that kernels can read."""
    if _readable(tensor) and _is_unshared(tensor):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _readable(tensor: Tensor) -> bool:
    """Whether kernels can read a tensor: every row is contiguous, and starts on 16 bytes."""
    if tensor.data_ptr() % ALIGNMENT or tensor.is_neg() or tensor.stride(-1) != 1:
        return False
    elements = ALIGNMENT // tensor.itemsize
    rows = zip(tensor.shape[:-1], tensor.stride(), strict=False)
    return tensor.is_contiguous() or all(n == 1 or stride % elements == 0 for n, stride in rows)


def _is_unshared(do: Tensor) -> bool:
    """Whether a gradient or a tangent has memory for every row."""
    return do.is_contiguous() or 0 not in do.stride()


def _copied(tensor: Tensor) -> Tensor:
    """Return a copy of a saved tensor. Its gradient has the same strides as that of the tensor."""
    return new_gradient(tensor).copy_(tensor)
