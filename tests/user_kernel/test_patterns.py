# SPDX-License-Identifier: Apache-2.0
"""Kernels after well-known patterns: nothing is found on any schedule, and NumPy agrees."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from ptx_emulator import SCHEDULES
from tests.user_kernel.corpus_kernels import clean, corpus_kernel
from tests.user_kernel.pattern_cases import cases

CASES = cases()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("entry", CASES)
def test_a_pattern(entry: str, schedule: str) -> None:
    case = CASES[entry]
    kernel = corpus_kernel(case.file, entry, case.arch)
    arguments = copy.deepcopy(case.arguments)
    result = clean(
        kernel, *arguments, **case.launch, variables=case.variables, schedule=schedule, seed=1
    )
    for got, wanted in zip(result.arrays, case.wanted, strict=False):
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(got, wanted)
