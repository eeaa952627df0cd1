# SPDX-License-Identifier: Apache-2.0
"""The sm_80 kernels beyond plain attention on a GPU: outputs start as NaN, lse is checked."""

from __future__ import annotations

from itertools import islice
from math import nan

import pytest
import torch

from flash_attention import forward
from flash_attention.families.sm80.forward.space import sample_configs
from flash_attention.kernel_configs import DType, FlashForwardKernelConfig, KernelConfig
from flash_attention.ladder import get_ladder
from flash_attention.launch.device import current_arch
from tests.feature_cases import LONG, Case, MadeCase, selected

pytestmark = pytest.mark.gpu

RUNGS = [rung.number for rung in get_ladder() if isinstance(rung.config, FlashForwardKernelConfig)]


def run_right(call: MadeCase, config: KernelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and lse of a launch; the output is full of NaN before."""
    poisoned = call.q.new_full((*call.q.shape[:-1], call.v.shape[-1]), nan)
    out, lse = forward(config, call.q, call.k, call.v, poisoned, return_lse=True, **call.arguments)
    assert out is poisoned
    call.assert_right(out, lse)
    return out, lse


@pytest.mark.parametrize("number", RUNGS[:-1])
@pytest.mark.parametrize("case", LONG, ids=lambda case: case.name)
def test_every_rung_is_right_and_ten_launches_are_bitwise_equal(case: Case, number: int) -> None:
    call = case.make("cuda", torch.float16)
    config = get_ladder(DType.FP16, 128, case.heads)[number - 1].config
    out, lse = run_right(call, config)
    rows = call.q.shape[-3] - case.padding
    for _ in range(10):
        again, lse_again = run_right(call, config)
        assert torch.equal(again[..., :rows, :, :], out[..., :rows, :, :])
        assert torch.equal(lse_again[..., :rows], lse[..., :rows])


@pytest.mark.parametrize("d_head", [64, 128, 192, 256])
def test_random_configs(d_head: int) -> None:
    valid = sample_configs(2026, current_arch())
    fast_to_compile = (c for c in valid if c.d_head == d_head and c.B_c <= 64)
    for seed, config in enumerate(islice(fast_to_compile, 12)):
        case = Case("", 300 + seed, 257, d_head, d_head - 8, 4, 2, causal=seed % 2 == 0, sinks=True)
        run_right(case.make("cuda", config.dtype.to_torch_dtype(), seed), config)


@pytest.mark.parametrize("d_head", [64, 128, 192, 256])
def test_lengths_around_the_tiles(d_head: int) -> None:
    for seq_q in (1, 31, 64, 65, 127, 129):
        for seq_k in (1, 31, 32, 33, 64, 65, 300):
            call = Case("", seq_q, seq_k, d_head, d_head, causal=seq_q % 2 == 0).make("cuda")
            run_right(call, selected(call, "sm_80"))
