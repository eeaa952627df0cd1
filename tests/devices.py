# SPDX-License-Identifier: Apache-2.0
"""The device of a test as its parameter: the CPU, where kernels are emulated, or a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.launch.emulation import Settings, emulate_plan
from flash_attention.launch.plan import Plan

HOPPER = pytest.mark.gpu("sm_90")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
HOPPER_DEVICES = ["cpu", pytest.param("cuda", marks=HOPPER)]


def on_devices(
    cases: Iterable[Any], large: Iterable[Any] = (), *, mark: pytest.MarkDecorator = HOPPER
) -> list[Any]:
    """The parameters of a test of cases and a device. The marks of a case are for the CPU: a GPU
    tries all of them, and large ones besides."""
    small = list(map(_parameter, cases))
    return [
        *(
            pytest.param(*case.values, "cpu", id=f"{case.id}-cpu", marks=case.marks)
            for case in small
        ),
        *(
            pytest.param(*case.values, "cuda", id=f"{case.id}-cuda", marks=mark)
            for case in (*small, *map(_parameter, large))
        ),
    ]


def of_dtypes(
    cases: Iterable[Any], large: Iterable[Any] = (), *, mark: pytest.MarkDecorator = HOPPER
) -> list[Any]:
    """The parameters of a test of cases, a dtype and a device. float16 is for a GPU alone."""
    small, more = list(map(_parameter, cases)), list(map(_parameter, large))

    def typed(given: list[Any], dtype: torch.dtype) -> list[Any]:
        return [
            pytest.param(*case.values, dtype, id=f"{case.id}-{dtype}", marks=case.marks)
            for case in given
        ]

    others = typed(small + more, torch.float16) + typed(more, torch.bfloat16)
    return on_devices(typed(small, torch.bfloat16), others, mark=mark)


def _parameter(case: Any) -> Any:
    if hasattr(case, "marks"):
        return case
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, id="-".join(str(getattr(v, "name", v)) for v in values))


def ran(plan: Plan, call: Call, settings: Settings | None = None) -> tuple[Tensor, Tensor | None]:
    """The output and the lse of a call on its device. The emulator, which takes the settings, finds
    nothing."""
    if call.q.is_cuda:
        result = plan.run(call)
        return (result[0], result[1]) if isinstance(result, tuple) else (result, None)
    emulation = emulate_plan(plan, call, settings or Settings())
    assert list(map(str, emulation.findings)) == []
    return emulation.output, emulation.lse
