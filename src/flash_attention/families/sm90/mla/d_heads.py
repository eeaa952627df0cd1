# SPDX-License-Identifier: Apache-2.0
"""The head dimensions of multi-head latent attention (MLA): all heads of q share one head of k, and
v is part of it."""

from __future__ import annotations

MLA_D_HEADS = ((320, 256), (448, 384), (576, 512))
"""Head dimensions of q and k, and of v, that kernels have for MLA alone: v is the latent columns
of k, and 64 rotary columns follow."""


def is_mla(d_head: int, d_v: int) -> bool:
    """Whether head dimensions are those of MLA."""
    return (d_head, d_v) in MLA_D_HEADS


def or_mla(d_head: int) -> str:
    """Say which v makes a head dimension one of MLA, if there is one."""
    d_v = dict(MLA_D_HEADS).get(d_head)
    return f", or {d_head} with a v of {d_v} columns of k (MLA)" if d_v else ""
