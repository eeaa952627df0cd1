# SPDX-License-Identifier: Apache-2.0
"""TangentCall: a call of attention, and the tangents of its q, k and v."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.errors import UnsupportedError


class TangentCall(NamedTuple):
    """One derivative in forward mode, by all of q, k and v."""

    call: Call
    q_tangent: Tensor
    k_tangent: Tensor
    v_tangent: Tensor


class WithTangent(NamedTuple):
    """The results of a call, and their tangents."""

    o: Tensor
    lse: Tensor
    o_tangent: Tensor
    lse_tangent: Tensor


def check_has_tangent(call: Call) -> None:
    """Raise UnsupportedError for a call without a derivative in forward mode, on any device."""
    given = {
        "out": call.out is not None,
        "sinks": call.sinks is not None,
        "cu_seqlens_q": call.cu_seqlens_q is not None,
        "cu_seqlens_k": call.cu_seqlens_k is not None,
        "seqused_k": call.seqused_k is not None,
        "block_table": call.block_table is not None,
        "k_descale": call.k_descale is not None,
        "dropout_p": bool(call.dropout_p),
        "a score or mask function": call.function is not None,
        "split_keys": call.split_keys is not None,
        "return_max": bool(call.return_max),
    }
    for name, is_given in given.items():
        if is_given:
            raise UnsupportedError(
                f"a tensor has a tangent and {name} is given, and the forward-mode derivative is"
                " that of dense q, k and v alone; leave it out, or pass"
                " torch.autograd.forward_ad.unpack_dual(q).primal, and the same of k and v"
            )
