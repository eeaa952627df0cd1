# SPDX-License-Identifier: Apache-2.0
"""Which calls have gradients, by the families of the backward pass."""

from __future__ import annotations

from flash_attention.call.call import Call
from flash_attention.call.strict import kernels_compute
from flash_attention.call.tensors import check_recordable
from flash_attention.errors import UnsupportedError
from flash_attention.families.passes import Pass
from flash_attention.families.registry import families_of
from flash_attention.families.sm90.mla.d_heads import is_mla


def widest_gradient() -> int:
    """Return the largest head dimension that kernels compute gradients of."""
    return max(family.widest() for family in families_of(Pass.BACKWARD))


# As torch.compiler.assume_constant_result marks a function, but without importing the compiler.
widest_gradient._dynamo_marked_constant = True  # type: ignore[attr-defined]


def gathering_arches() -> list[str]:
    """Return the architectures with kernels for gradients of captured tensors."""
    return [family.name for family in families_of(Pass.BACKWARD) if family.gathers]


def check_differentiable(call: Call) -> None:
    """Raise UnsupportedError for a call whose gradients cannot be computed."""
    check_recordable(call)
    d_head, d_v = call.q.shape[-1], call.v.shape[-1]
    if is_mla(d_head, d_v) and d_head > widest_gradient() and kernels_compute(call.q):
        raise UnsupportedError(
            f"q has d_head {d_head} and v {d_v} (MLA), and no kernel computes their gradients; call"
            " under torch.no_grad(), or pass the heads of k and v that the latent columns stand for"
        )
