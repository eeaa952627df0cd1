# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention (MLA): all heads of q share one head of k, and v is part of it.

Neither its gradients nor those of other wide heads have kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flash_attention.call.call import Call
from flash_attention.call.strict import kernels_compute
from flash_attention.errors import UnsupportedError

if TYPE_CHECKING:
    from flash_attention.call.tensors import TensorView

MLA_D_HEADS = ((320, 256), (448, 384), (576, 512))
"""Head dimensions of q and k, and of v, that kernels have for MLA alone: v is the latent columns
of k, and 64 rotary columns follow."""
MAX_GRADIENT_D_HEAD = 256  # of the widest kernel config that computes gradients


def is_mla(d_head: int, d_v: int) -> bool:
    """Whether head dimensions are those of MLA."""
    return (d_head, d_v) in MLA_D_HEADS


def or_mla(d_head: int) -> str:
    """Say which v makes a head dimension one of MLA, if there is one."""
    d_v = dict(MLA_D_HEADS).get(d_head)
    return f", or {d_head} with a v of {d_v} columns of k (MLA)" if d_v else ""


def check_v_in_k(k: TensorView, v: TensorView) -> None:
    """Check that v starts where k does, for kernels that read v as the first columns of k."""
    if k.pointer != v.pointer:
        raise UnsupportedError(
            f"v starts at address {v.pointer:#x}, k at {k.pointer:#x}; MLA kernels read v as the"
            f" first columns of k: pass v=k[..., :{v.shape[-1]}]"
        )


def check_not_mla(call: Call) -> None:
    """Check that a call whose gradients kernels compute is no MLA."""
    d_head, d_v = call.q.shape[-1], call.v.shape[-1]
    if is_mla(d_head, d_v) and kernels_compute(call.q):
        raise UnsupportedError(
            f"q has d_head {d_head} and v {d_v} (MLA), and no kernel computes their gradients; call"
            " under torch.no_grad(), or pass the heads of k and v that the latent columns stand for"
        )


def check_not_wide(call: Call) -> None:
    """Check that kernels compute the gradients of a call's head dimensions."""
    for name, tensor in (("q", call.q), ("v", call.v)):
        if (d_head := tensor.shape[-1]) > MAX_GRADIENT_D_HEAD and kernels_compute(tensor):
            raise UnsupportedError(
                f"{name} has d_head {d_head}, and kernels compute gradients of d_head up to"
                f" {MAX_GRADIENT_D_HEAD}; call under torch.no_grad(), or call torch's own"
                " scaled_dot_product_attention"
            )
