# SPDX-License-Identifier: Apache-2.0
"""Clocks by hand, and rates that give the peaks of the data sheets."""

from __future__ import annotations

import pytest

from flash_attention.arch import ARCHES
from flash_attention_workbench.inspect.sm_rates import RATES, ROOFS, Work


def test_every_architecture_has_rates() -> None:
    assert set(RATES) == set(ARCHES)


@pytest.mark.parametrize(("arch", "sms", "ghz"), [("sm_80", 108, 1.41), ("sm_90", 132, 1.83)])
def test_rates_times_clock_are_the_peak(arch: str, sms: int, ghz: float) -> None:
    rate = RATES[arch].tensor_flop
    assert rate is not None
    assert sms * ghz * rate / 1e3 == pytest.approx(ROOFS[arch].tflops, rel=0.01)


def test_clocks_of_each_unit() -> None:
    work = Work(
        tensor_flop=8192, special_functions=64, fp32=256, shared_bytes=1280, instructions=12
    )
    assert work.clocks(RATES["sm_90"]) == {
        "tensor cores": 2,
        "special functions": 4,
        "fp32 lanes": 2,
        "shared memory": 10,
        "issue slots": 3,
    }
    assert work.clocks(RATES["sm_80"])["fp32 lanes"] == 4
    assert "tensor cores" not in work.clocks(RATES["sm_89"])


def test_the_ridge_is_flop_for_a_byte() -> None:
    assert ROOFS["sm_80"].ridge == pytest.approx(312e12 / 2039e9)
