# SPDX-License-Identifier: Apache-2.0
"""torch's SDPA is asked only for what it computes as we do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend

from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.grid import Point
from flash_attention_workbench.bench.peers.torch_sdpa import sdpa


class OnCuda(torch.Tensor):
    is_cuda = True


@pytest.mark.parametrize(
    ("point", "why"),
    [
        (Point(64, True, 64, 1, 2, seq_q=32), "32 queries and 64 keys they differ"),
        (Point(64, True, 64, 1, 2, window=8), "takes no window"),
        (Point(64, False, 64, 2, 2, lengths=(64, 32)), "takes no packed entries"),
    ],
)
def test_what_it_computes_otherwise_is_refused(point: Point, why: str) -> None:
    case = Case.of(point, DType.FP16)
    case = replace(case, q=case.q.as_subclass(OnCuda))
    with pytest.raises(UnsupportedError, match=why):
        sdpa(SDPBackend.FLASH_ATTENTION, "fa2", case)
