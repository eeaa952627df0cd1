# SPDX-License-Identifier: Apache-2.0
"""Dropout of a call: its probability, and the state that its random numbers follow from."""

from __future__ import annotations

import torch
from torch import Tensor

from flash_attention.errors import UnsupportedError, one

THRESHOLD_BITS = 8
STEPS = 1 << THRESHOLD_BITS  # values of the number that decides on a weight


def kept_steps(dropout_p: float) -> int:
    """Return how many of the STEPS values of a number keep a weight: 1 - dropout_p, rounded. If
    there is dropout, some values keep a weight and some drop it."""
    if dropout_p == 0:
        return STEPS
    return min(max(round(STEPS * (1 - dropout_p)), 1), STEPS - 1)


def check_rng_state(state: object, device: torch.device | None = None) -> None:
    """Check that a state is a seed and an offset, on a device if that matters."""
    given = one(type(state).__name__)
    if isinstance(state, Tensor):
        is_strided = state.layout == torch.strided
        is_vector = is_strided and state.shape == (2,) and state.stride() == (1,)
        if is_vector and state.dtype == torch.int64 and device in (None, state.device):
            return
        given = f"{state.dtype} {tuple(state.shape)} on {state.device}"
        if not is_strided:
            given += f", and {state.layout}"
        elif state.shape == (2,) and not is_vector:
            given += ", and not contiguous"
    raise UnsupportedError(
        f"rng_state is {given}; pass a seed and an offset, torch.int64 (2,) on"
        f" {device or 'any device'}, such as torch.randint(2**63 - 1, (2,), device=q.device)"
    )


def draw_rng_state(device: torch.device) -> Tensor:
    """Draw the state of a call, (seed, offset), from the generator of its device. Drawing it by an
    operator of torch is what CUDA graphs, checkpoints and torch.compile know to repeat or not."""
    return torch.randint((1 << 63) - 1, (2,), dtype=torch.int64, device=device)
