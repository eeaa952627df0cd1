# SPDX-License-Identifier: Apache-2.0
"""Users' score and mask functions on scores in torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flash_attention.program.torch_reader import Coordinates, change_score, see
from flash_attention.program.trace import Traced


def places(
    sequence: int, heads: slice, rows: range, keys: slice, device: torch.device
) -> Coordinates:
    """Return the places of scores (heads, rows, keys) of one sequence."""
    return Coordinates(
        torch.tensor(sequence, device=device),
        torch.arange(heads.start, heads.stop, device=device)[:, None, None],
        torch.arange(rows.start, rows.stop, device=device)[:, None],
        torch.arange(keys.start, keys.stop, device=device),
    )


def applied(traced: Traced, scores: Tensor, at: Coordinates) -> Tensor:
    """Return the changed scores, and -inf where the mask shows no key."""
    seen = see(traced, at, scores.dtype)
    return change_score(traced, scores, at).masked_fill(~seen, -math.inf)


def slopes(traced: Traced, scores: Tensor, at: Coordinates) -> Tensor:
    """Return the derivatives of changed scores by those before."""
    key = torch._C.DispatchKey.AutogradFunctionality  # which is left out within an operator
    with torch.enable_grad(), torch._C._SetExcludeDispatchKeyGuard(key, False):
        before = scores.detach().requires_grad_()
        changed = change_score(traced, before, at)
        if not changed.requires_grad:
            return torch.zeros_like(scores)
        (found,) = torch.autograd.grad(changed.sum(), before)
    return found
