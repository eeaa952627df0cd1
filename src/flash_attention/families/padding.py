# SPDX-License-Identifier: Apache-2.0
"""Head dimensions whose rows no kernel copies: rows of q, k and v get zeros at their end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.checks import views_of
from flash_attention.call.options import check_extras, check_options
from flash_attention.call.results import E4M3
from flash_attention.call.tensors import (
    Packing,
    check_d_head,
    check_given_output,
    check_shapes,
    given_tensors,
)
from flash_attention.errors import UnsupportedError
from flash_attention.families.gradients import check_differentiable
from flash_attention.families.registry import FAMILIES
from flash_attention.program.tangent import has_tangent

MAX_D_HEAD = max(family.widest() for family in FAMILIES)
STEP = 8  # elements of 16 bits that one copy instruction moves
STEP_8_BIT = 16
_any_transforms: Callable[[], bool] = torch._C._are_functorch_transforms_active


def needs_padding(q: Tensor, v: Tensor) -> bool:
    """Whether rows have to be padded before a kernel can read them. This runs in every call."""
    try:
        d, d_v, step = q.shape[-1], v.shape[-1], _step(v)
    except (AttributeError, IndexError, RuntimeError, TypeError):  # which the checks refuse
        return False
    return bool((d % step or d_v % step) and max(d, d_v) <= MAX_D_HEAD)


def padded(call: Call) -> Call:
    """Return the call with padded copies of q, k and v, without its `out`, and with the scale that
    follows from the head dimension before padding. The call is checked first."""
    if not (torch.compiler.is_compiling() or _any_transforms()):  # whose tensors have no memory
        _check(call)
    else:
        check_d_head(call.q.shape, call.k.shape)  # which padding would hide
    step = _step(call.v)
    q, k, v = (_padded(tensor, step) for tensor in call[:3])
    scale = call.softmax_scale
    if scale is None:
        scale = call.q.shape[-1] ** -0.5
    return call._replace(q=q, k=k, v=v, out=None, softmax_scale=scale)


@contextmanager
def naming_padding(call: Call) -> Iterator[None]:
    """Let an error that names padded head dimensions name those that `call` was made with."""
    try:
        yield
    except UnsupportedError as error:
        if not needs_padding(call.q, call.v):
            raise
        step = _step(call.v)
        said = [
            f"d_head {d} is padded to {wide}, a multiple of {step}"
            for d in dict.fromkeys((call.q.shape[-1], call.v.shape[-1]))
            if (wide := d + -d % step) != d and re.search(rf"\b{wide}\b", str(error))
        ]
        if not said:
            raise
        raise UnsupportedError(f"{error} ({'; '.join(said)})") from None


def _step(v: Tensor) -> int:
    """Return what head dimensions are multiples of. k and v may have fewer bits than q."""
    return STEP_8_BIT if v.dtype == E4M3 else STEP


def _check(call: Call) -> None:
    """Check the call as it was made, so that messages show its own shapes."""
    check_options(call)
    q, k, v, *out = views_of(call)
    check_shapes(q, k, v, Packing.of(call))
    check_extras(call, q, k)
    for view in out:
        check_given_output(view, q, v)
    in_forward_mode = any(map(has_tangent, given_tensors(call)))
    if torch.is_grad_enabled() and call.needs_grad() and not in_forward_mode:
        check_differentiable(call)


def _padded(tensor: Tensor, step: int) -> Tensor:
    missing = -tensor.shape[-1] % step
    # torch pads a tensor with another order of dimensions in that order.
    return F.pad(tensor, (0, missing)).contiguous() if missing else tensor
