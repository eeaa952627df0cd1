# SPDX-License-Identifier: Apache-2.0
"""Head dimensions that are no multiple of 8: rows of q, k and v get zeros at their end."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.checks import views_of
from flash_attention.call.options import check_extras, check_options
from flash_attention.call.tensors import (
    MAX_D_HEAD,
    Packing,
    check_differentiable,
    check_given_output,
    check_shapes,
)

HEAD_DIM_STEP = 8  # elements of 16 bits that one copy instruction moves


def needs_padding(q: Tensor, v: Tensor) -> bool:
    """Whether rows have to be padded before a kernel can read them. This runs in every call."""
    try:
        d, d_v = q.shape[-1], v.shape[-1]
    except (AttributeError, IndexError, TypeError):  # no such tensors, which the checks refuse
        return False
    return bool((d % HEAD_DIM_STEP or d_v % HEAD_DIM_STEP) and max(d, d_v) <= MAX_D_HEAD)


def padded(call: Call) -> Call:
    """Return the call with padded copies of q, k and v, without its `out`, and with the scale that
    follows from the head dimension before padding. The call is checked first."""
    if not torch.compiler.is_compiling():
        _check(call)
    q, k, v = map(_padded, call[:3])
    scale = call.softmax_scale
    if scale is None:
        scale = call.q.shape[-1] ** -0.5
    return call._replace(q=q, k=k, v=v, out=None, softmax_scale=scale)


def _check(call: Call) -> None:
    """Check the call as it was made, so that messages show its own shapes."""
    check_options(call)
    q, k, v, *out = views_of(call)
    check_shapes(q, k, v, Packing.of(call))
    check_extras(call, q, k)
    for view in out:
        check_given_output(view, q, v)
    if torch.is_grad_enabled() and call.needs_grad():
        check_differentiable(call)


def _padded(tensor: Tensor) -> Tensor:
    missing = -tensor.shape[-1] % HEAD_DIM_STEP
    return F.pad(tensor, (0, missing)) if missing else tensor
