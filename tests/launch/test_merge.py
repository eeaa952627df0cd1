# SPDX-License-Identifier: Apache-2.0
"""The kernel that merges parts gives what torch does."""

from __future__ import annotations

import pytest
import torch

from flash_attention.call.merge_call import MergeCall
from flash_attention.launch import emulation
from flash_attention.launch.merge import merge_by_kernel
from flash_attention.reference.merge import merge_with_torch
from ptx_emulator import SCHEDULES
from tests.devices import DEVICES
from tests.merge_calls import parts_of

FLOAT, HALF, BF16 = torch.float32, torch.float16, torch.bfloat16


def check(call: MergeCall, dtype: torch.dtype, device: str) -> None:
    given = MergeCall(*(t.to(device) for t in call))
    o, lse = (t.cpu() for t in merge_by_kernel(given, dtype))
    wanted = merge_with_torch(call, dtype)
    step = 1e-5 if dtype == FLOAT else 2e-2 if dtype == BF16 else 2e-3
    torch.testing.assert_close(o, wanted[0], rtol=step, atol=step)
    torch.testing.assert_close(lse, wanted[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("d", [64, 96, 256, 30, 7])
def test_parts_become_one(d: int, packed: bool, device: str) -> None:
    for count in (1, 2, 6):
        check(parts_of(count, d, packed=packed), BF16, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("first", "rest", "dtype"),
    [
        (HALF, HALF, HALF),
        (FLOAT, FLOAT, FLOAT),
        (FLOAT, BF16, FLOAT),
        (HALF, FLOAT, FLOAT),
        (FLOAT, FLOAT, BF16),
    ],
    ids=str,
)
def test_parts_may_be_wider_than_the_result_or_each_other(
    first: torch.dtype, rest: torch.dtype, dtype: torch.dtype, device: str
) -> None:
    check(parts_of(3, 64, first, rest), dtype, device)


@pytest.mark.parametrize("device", DEVICES)
def test_parts_may_have_any_strides(device: str) -> None:
    call = parts_of(3, 64)
    transposed = call._replace(
        o=call.o.mT.contiguous().mT,  # the last dimension is not contiguous
        lse=call.lse.mT.contiguous().mT,
        o_rest=torch.cat((call.o_rest, call.o_rest), -1)[..., 1:65].roll(1, -1),
    )
    check(transposed, BF16, device)


@pytest.mark.parametrize("device", DEVICES)
def test_parts_are_added_in_order(device: str) -> None:
    """The bits of a merge do not depend on what else is merged."""
    call = MergeCall(*(t.to(device) for t in parts_of(5, 64, FLOAT, FLOAT)))
    o, lse = merge_by_kernel(call, FLOAT)
    alone = MergeCall(*(t[..., :1, :, :] if t.ndim > 3 and t.shape[-1] == 64 else t for t in call))
    alone = alone._replace(lse=call.lse[..., :1], lse_rest=call.lse_rest[..., :1])
    mine = merge_by_kernel(alone, FLOAT)
    assert torch.equal(mine[0], o[:, :1])
    assert torch.equal(mine[1], lse[..., :1])


def test_all_schedules_merge_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = emulation.Settings
    for schedule in SCHEDULES:
        monkeypatch.setattr(emulation, "Settings", lambda which=schedule: settings(which))
        check(parts_of(3, 192), BF16, "cpu")


def test_nothing_is_merged_without_rows() -> None:
    o, lse = torch.zeros(2, 0, 3, 64), torch.zeros(2, 3, 0)
    merged = merge_by_kernel(MergeCall(o, lse, o[None], lse[None]), FLOAT)
    assert (merged[0].shape, merged[1].shape) == (o.shape, lse.shape)
