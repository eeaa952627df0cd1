# SPDX-License-Identifier: Apache-2.0
"""MLA kernels: right numbers, and nothing found by the emulator, whatever the order of warps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flash_attention.families.sm90.mla.config import HopperMlaKernelConfig
from flash_attention.launch.emulation import Settings
from tests.devices import on_devices, ran
from tests.families.sm90.mla.cases import CASES, NARROW, Case, MadeCase
from tests.gate import one_in


def computed(
    config: HopperMlaKernelConfig, made: MadeCase, settings: Settings | None = None
) -> tuple[Tensor, Tensor | None]:
    """The results of a case on its device."""
    return ran(made.plan(config), made.call, settings)


def made_case(name: str, device: str = "cpu") -> tuple[HopperMlaKernelConfig, MadeCase]:
    config, case = CASES[name]
    return config, case.make(config.d_v, config.dtype.to_torch_dtype(), device)


@pytest.mark.parametrize(("name", "device"), on_devices(one_in(4, CASES)))
def test_the_output_and_its_lse_are_right(name: str, device: str, schedule: str) -> None:
    config, made = made_case(name, device)
    made.assert_right(*computed(config, made, Settings(schedule)))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "schedule", "seed"),
    [
        ("four queries", "depth-first", 0),
        ("lengths, stream-K", "random", 0),
        ("pages, stream-K", "random", 1),
        ("sharp, stream-K", "depth-first", 0),
        ("deferred, stream-K", "random", 0),
        ("packed, pages, stream-K", "random", 1),
    ],
)
def test_they_are_right_in_every_order_of_warps(name: str, schedule: str, seed: int) -> None:
    config, made = made_case(name)
    made.assert_right(*computed(config, made, Settings(schedule, seed)))


def test_nan_reaches_the_rows_that_see_it_and_no_other() -> None:
    """NaN in the rotary columns, that is: v has none of them."""
    made = Case(4, 130, causal=True).make(NARROW.d_v)
    k = made.k.clone()
    k[:, 128, :, NARROW.d_v :] = torch.nan
    dirty = replace(made, call=made.call._replace(k=k, v=k[..., : NARROW.d_v]))
    out, _ = computed(NARROW, dirty)
    assert out[:, 2:].isnan().all()
    assert not out[:, :2].isnan().any()


def test_splits_of_a_given_length_do_not_depend_on_the_batch() -> None:
    """A sequence has the same bits alone and beside another."""
    both = Case(2, 330, batch=2, split_keys=128, causal=True).make(NARROW.d_v)
    call = both.call
    alone = call._replace(q=call.q[:1], k=call.k[:1], v=call.v[:1])
    one = MadeCase(both.case, both.q[:1], both.k[:1], both.keywords, alone)
    assert torch.equal(computed(NARROW, one)[0][0], computed(NARROW, both)[0][0])
