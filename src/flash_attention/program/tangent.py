# SPDX-License-Identifier: Apache-2.0
"""Whether a tensor has a tangent of forward-mode autograd."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

_is_excluded: Callable[..., bool] = torch._C._dispatch_tls_is_dispatch_key_excluded


def has_tangent(tensor: Tensor | None) -> bool:
    """Return whether a tensor has a tangent, as in torch.func.jvp, also inside of torch.vmap."""
    if forward_ad._current_level < 0 or not isinstance(tensor, Tensor):
        return False
    while torch._C._functorch.is_batchedtensor(tensor):  # which torch does not unpack
        tensor = torch._C._functorch.get_unwrapped(tensor)
    if not _is_excluded(torch._C.DispatchKey.AutogradFunctionality):
        return forward_ad.unpack_dual(tensor).tangent is not None
    # An operator of a compiled graph may run below autograd, where torch unpacks nothing.
    included = torch._C._dispatch_tls_local_include_set()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded - excluded):
        return forward_ad.unpack_dual(tensor).tangent is not None
