# SPDX-License-Identifier: Apache-2.0
"""compute: what runs a call on the CPU, and what a profiler of torch sees of it."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from flash_attention import attention
from flash_attention.call.call import Call
from flash_attention.errors import UnsupportedError
from flash_attention.launch.compute import compute
from flash_attention.launch.plans import plan_for
from flash_attention.reference.judge import generate_qkv
from tests.launch.calls import CONFIG

NAME = f"flash_attention::{CONFIG.short_form()}"


def ranges(device: str) -> list[str]:
    q, k, v = generate_qkv(1, 64, 1, 64, torch.float16, device)
    attention(q, k, v, config=CONFIG)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        attention(q, k, v, config=CONFIG)
    attention(q, k, v, config=CONFIG)
    return [event.name for event in profiler.events() if event.name.startswith("flash_attention")]


@pytest.mark.usefixtures("no_compile")
def test_a_config_counts_on_the_cpu_too() -> None:
    q, k, v = generate_qkv(1, 8, 1, 128, torch.float16)
    assert compute(Call(q, k, v)) is not None
    with pytest.raises(UnsupportedError, match="the kernel config is for d_head up to 64"):
        compute(Call(q, k, v), CONFIG)


@pytest.mark.slow
def test_an_emulated_kernel_is_a_range_with_its_name() -> None:
    assert ranges("cpu") == [NAME]


@pytest.mark.gpu
def test_a_kernel_is_a_range_with_its_name() -> None:
    assert ranges("cuda") == [NAME]


@pytest.mark.gpu
def test_a_chosen_kernel_is_named_too() -> None:
    q, k, v = generate_qkv(1, 128, 2, 64, torch.float16, "cuda")
    chosen = plan_for(Call(q, k, v)).config.short_form()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        attention(q, k, v)
    assert f"flash_attention::{chosen}" in [event.name for event in profiler.events()]
