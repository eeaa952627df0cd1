# SPDX-License-Identifier: Apache-2.0
"""What autograd passes is copied where kernels cannot read it."""

from __future__ import annotations

import torch

from flash_attention.families.readable import backward_call_of
from tests.call.test_backward_call import whole


def test_what_kernels_can_read_is_not_copied() -> None:
    do, call, lse, dlse, wanted, _ = whole()
    wide = torch.zeros(2, 4, 2, 16, dtype=torch.float16)
    heads_first = do.transpose(1, 2).contiguous().transpose(1, 2)
    for given in (do, wide[..., :8], wide[..., 8:], heads_first):
        made = backward_call_of(given, call, lse, dlse, wanted, deterministic=False)
        assert made.do is given
        assert made.dlse is dlse


def test_what_kernels_cannot_read_is_copied() -> None:
    _, call, lse, _, wanted, _ = whole()
    values = torch.arange(2 * 4 * 2 * 8).view(2, 4, 2, 8).half()
    flat = torch.cat((torch.zeros(1).half(), values.flatten()))
    negated = torch.complex(torch.zeros(2, 4, 2, 8), -values.float()).conj().imag
    for given, exact in (
        (flat[1:].view_as(values), values),
        (values.mT.contiguous().mT, values),
        (torch.cat((values, values[..., :1]), -1)[..., :8], values),
        (values[:, :1].expand_as(values), values[:, :1].expand_as(values)),
        (negated, values.float()),
        (torch._neg_view(values), -values),
    ):
        dlse = (
            torch._neg_view(torch.ones(2, 2, 4))
            if given.is_neg()
            else torch.ones(()).expand(2, 2, 4)
        )
        made = backward_call_of(given, call, lse, dlse, wanted, deterministic=False)
        assert torch.equal(made.do, exact)
        assert made.do.is_contiguous()
        assert not made.do.is_neg()
        assert made.do.data_ptr() % 16 == 0
        assert made.dlse is not None
        assert torch.equal(made.dlse, dlse)
        assert made.dlse.is_contiguous()
        assert not made.dlse.is_neg()
