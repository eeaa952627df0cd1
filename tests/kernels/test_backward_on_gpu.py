# SPDX-License-Identifier: Apache-2.0
"""Gradients of the sm_80 kernels on a GPU: right at real sizes, and the same bits each time."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
import torch

from flash_attention.call.backward_call import BackwardCall, Gradients, Wanted
from flash_attention.call.dtype import DType
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig
from flash_attention.families.sm80.backward.rungs import STEPS, base
from flash_attention.families.sm80.backward.space import sample_configs
from flash_attention.launch.compute import compute_gradients
from flash_attention.launch.device import current_arch
from tests import feature_cases
from tests.backward_cases import assert_right, backward_of, flash_config
from tests.feature_cases import CASES, Case

pytestmark = pytest.mark.gpu

LONG = [
    *feature_cases.LONG,
    Case("full, d 64", 2048, 2048, 64, 64, 4, 4),
    Case("causal, d 64", 2048, 2048, 64, 64, 8, 1, causal=True),
    Case("causal, d 256", 1500, 1500, 256, 256, 2, 1, causal=True),
]
ARCHITECTURES = ("sm_80", "sm_86", "sm_90")  # whose configs an H200 runs


def run_right(call: BackwardCall, config: FlashBackwardKernelConfig) -> Gradients:
    gradients = compute_gradients(call, config)
    assert_right(gradients, call)
    return gradients


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("case", [*CASES, *LONG], ids=lambda case: case.name)
def test_the_kernels_that_an_architecture_gets_are_right(case: Case, arch: str) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        made = case.make("cuda", dtype)
        call = backward_of(made, Wanted(dsinks=case.sinks), with_dlse=True)
        config = flash_config(call, arch)
        if config.broken_rule(current_arch()):
            pytest.skip(f"this GPU does not run {config}")
        run_right(call, config)


@pytest.mark.parametrize("case", LONG, ids=lambda case: case.name)
def test_ten_deterministic_passes_are_bitwise_equal(case: Case) -> None:
    call = backward_of(
        case.make("cuda"), Wanted(dsinks=case.sinks), deterministic=True, with_dlse=True
    )
    config = flash_config(call, current_arch().name)
    first = run_right(call, config)
    for _ in range(10):
        for once, again in zip(first, compute_gradients(call, config), strict=True):
            assert once is None or (again is not None and torch.equal(once, again))


@pytest.mark.parametrize("d_head", [64, 128])
@pytest.mark.parametrize("rung", range(len(STEPS) + 1))
def test_every_rung_is_right(rung: int, d_head: int) -> None:
    config = base(DType.BF16, d_head)
    for _, _, change in STEPS[:rung]:
        config = replace(config, **change)
    for causal in (False, True):
        case = Case("", 1100, 1000, d_head, d_head, 4, 2, causal=causal)
        run_right(backward_of(case.make("cuda")), config)


@pytest.mark.parametrize("d_head", [32, 64, 96, 128, 192, 256])
def test_random_configs_are_right(d_head: int) -> None:
    valid = (c for c in sample_configs(2026, current_arch()) if c.d_head == d_head)
    for seed, config in enumerate(islice(valid, 8)):
        case = Case("", 300 + seed, 257, d_head, d_head - 8, 4, 2, causal=seed % 2 == 0)
        made = case.make("cuda", config.dtype.to_torch_dtype(), seed)
        run_right(backward_of(made, deterministic=seed % 3 == 0), config)


@pytest.mark.parametrize("d_head", [64, 128, 256])
def test_lengths_around_the_tiles(d_head: int) -> None:
    for seq_q in (1, 31, 64, 65, 127, 129):
        for seq_k in (1, 31, 32, 65, 300):
            case = Case("", seq_q, seq_k, d_head, d_head, causal=seq_q % 2 == 0)
            call = backward_of(case.make("cuda"), deterministic=seq_k % 2 == 0)
            run_right(call, flash_config(call, current_arch().name))


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(dq=False),
        Wanted(False, False),
        Wanted(False, True, False),
        Wanted(dk=False),
        Wanted(dk=False, dv=False),
    ],
    ids=lambda wanted: "".join(name for name, on in wanted._asdict().items() if on),
)
def test_only_wanted_gradients_are_computed(wanted: Wanted) -> None:
    call = backward_of(LONG[0].make("cuda"), wanted)
    run_right(call, flash_config(call, current_arch().name))
