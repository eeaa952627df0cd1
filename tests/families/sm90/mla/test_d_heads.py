# SPDX-License-Identifier: Apache-2.0
"""Which head dimensions are those of MLA, and where v has to start."""

from __future__ import annotations

import pytest
import torch

from flash_attention.call.call import Call
from flash_attention.errors import UnsupportedError
from flash_attention.families.gradients import check_differentiable
from flash_attention.families.sm90.mla.d_heads import is_mla, or_mla
from flash_attention.families.sm90.mla.fit import elsewhere


@pytest.mark.parametrize(
    ("d_head", "d_v", "wanted"),
    [
        *((576, 512, True), (448, 384, True), (320, 256, True)),
        *((192, 128, False), (576, 576, False), (512, 576, False), (128, 128, False)),
    ],
)
def test_head_dimensions_of_mla_are_beyond_those_of_other_kernels(
    d_head: int, d_v: int, wanted: bool
) -> None:
    assert is_mla(d_head, d_v) == wanted


def test_a_head_dimension_of_mla_is_told_its_v() -> None:
    assert or_mla(576) == ", or 576 with a v of 512 columns of k (MLA)"
    assert or_mla(264) == ""


def test_v_has_to_start_where_k_does() -> None:
    k = torch.zeros(1, 4, 1, 576, dtype=torch.bfloat16)
    at, after = (Call(k, k, k[..., first : first + 512]) for first in (0, 8))
    assert elsewhere(at) is None
    assert str(elsewhere(after)).endswith(
        "MLA kernels read v as the first columns of k: pass v=k[..., :512]"
    )


def test_gradients_are_refused_beyond_the_cpu() -> None:
    for device in ("cpu", "meta"):
        q, k = (torch.zeros(1, 1, heads, 576, device=device) for heads in (16, 1))
        call = Call(q, k, k[..., :512])
        if device == "cpu":
            check_differentiable(call)
            continue
        with pytest.raises(UnsupportedError, match="d_head 576 and v 512"):
            check_differentiable(call)
