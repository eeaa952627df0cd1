# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from ptx_emulator import load_program
from ptx_emulator.program.ordering import ordering_of, scope_of_fence
from ptx_emulator.ptx.model import Instruction
from tests.emulator.snippets import kernel


def instruction(text: str) -> Instruction:
    """The one before the last of a kernel, which is its `ret`."""
    return load_program(kernel(text)).kernel.instructions[-2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ld.global.u32 %r5, [%rd3];", (False, False, False, "gpu", False)),
        ("ld.global.nc.u32 %r5, [%rd3];", (False, False, False, "gpu", True)),
        ("ld.volatile.global.u32 %r5, [%rd3];", (True, False, False, "gpu", False)),
        ("ld.acquire.sys.global.u32 %r5, [%rd3];", (True, True, False, "gpu", False)),
        ("st.release.cta.global.u32 [%rd3], %r0;", (True, False, True, "cta", False)),
        ("red.global.add.u32 [%rd3], 1;", (True, False, False, "gpu", False)),
        ("atom.acq_rel.gpu.global.add.u32 %r5, [%rd3], 1;", (True, True, True, "gpu", False)),
    ],
)
def test_what_an_access_says(text: str, expected: tuple[object, ...]) -> None:
    assert tuple(ordering_of(instruction(text))) == expected


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("membar.cta;", "cta"),
        ("membar.gl;", "gpu"),
        ("fence.sc.cta;", "cta"),
        ("fence.acq_rel.sys;", "gpu"),
        ("fence.proxy.async;", None),
    ],
)
def test_whom_a_fence_orders(text: str, scope: str | None) -> None:
    assert scope_of_fence(instruction(text)) == scope
    assert load_program(kernel(text)).has_fences == (scope is not None)


@pytest.mark.parametrize(
    ("text", "exchange"),
    [
        ("st.global.u32 [%rd3], %r0;", False),
        ("atom.shared.add.u32 %r5, [buffer], 1;", False),
        ("ld.volatile.global.u32 %r5, [%rd3];", True),
        ("red.global.add.u32 [%rd3], 1;", True),
    ],
)
def test_whether_ctas_may_learn_from_each_other(text: str, exchange: bool) -> None:
    assert load_program(kernel(text)).ctas_exchange == exchange
