# SPDX-License-Identifier: Apache-2.0
"""wgmma and bulk copies: the emulator against NumPy, and against an sm_90 GPU if there is one."""

from __future__ import annotations

import pytest

from tests.emulator.conformance import bulk_copies, tensor_copies, wgmma
from tests.emulator.conformance.hopper_case import HopperCase, emulated_hopper, same_bits
from tests.emulator.conformance.hopper_device import launched_hopper

CASES = [*wgmma.cases(), *tensor_copies.cases(), *bulk_copies.cases()]
HOPPER = (9, 0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_emulator_computes_what_numpy_does(case: HopperCase) -> None:
    out, findings = emulated_hopper(case)
    assert list(map(str, findings)) == []
    assert {name: same_bits(out[name], wanted) for name, wanted in case.expected.items()} == (
        dict.fromkeys(case.expected, True)
    )


@pytest.mark.gpu("sm_90")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_gpu_computes_what_the_emulator_does(case: HopperCase) -> None:
    on_gpu, (on_emulator, _) = launched_hopper(case), emulated_hopper(case)
    for name, wanted in case.expected.items():
        assert same_bits(on_gpu[name], wanted), name
        assert same_bits(on_gpu[name], on_emulator[name]), name
