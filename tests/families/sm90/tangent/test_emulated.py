# SPDX-License-Identifier: Apache-2.0
"""Kernels for tangents: right numbers, and nothing found by the emulator, in every order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention import TileOrder, UnsupportedError
from flash_attention.arch import ARCHES, MEASURED_ARCH
from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.call.tangent_call import TangentCall, TangentProblem
from flash_attention.choose.heuristic import select_config
from flash_attention.compile import compile_kernel
from flash_attention.families.registry import unit_of
from flash_attention.launch import emulation
from flash_attention.launch.compute import compute_tangent
from flash_attention.launch.emulation import Settings
from ptx_emulator import SCHEDULES
from tests.devices import on_devices
from tests.families.sm90.tangent.cases import USUAL, TangentCase, assert_right

HALF = torch.float16
CASES = [
    TangentCase("whole blocks", 128, 192),
    TangentCase("ragged", 130, 100, batch=2),
    TangentCase("ragged d 128", 70, 150, 128),
    TangentCase("one row", 1, 300),
    TangentCase("causal", 300, 300, heads=2, causal=True),
    TangentCase("causal d 128", 200, 330, 128, batch=2, heads=2, causal=True, dtype=HALF),
    TangentCase("rows without keys", 200, 100, causal=True),
    TangentCase("window", 260, 230, heads=2, window=(70, 20)),
    TangentCase("narrow window d 128", 200, 400, 128, window=(5, 0), dtype=HALF),
    TangentCase("grouped heads", 90, 120, batch=2, heads=4, heads_k=2),
    TangentCase("d_v smaller", 70, 80, 96, 40, causal=True),
    TangentCase("d_v larger", 70, 80, 16, 104),
    TangentCase("softcap", 130, 200, causal=True, softcap=1.5),
    TangentCase("softcap d 128", 70, 150, 128, softcap=1.5, dtype=HALF),
    TangentCase("sharp", 130, 200, softmax_scale=2.0),
    TangentCase("sharp half", 130, 200, 128, softmax_scale=1.0, dtype=HALF),
]
LARGE = [
    TangentCase(f"d {d}, {'causal' if causal else 'full'}, {dtype}", 1500, 1700, d, 0, 2, 4, 2)
    for d in (64, 128)
    for causal in (False, True)
    for dtype in (torch.bfloat16, HALF)
]
LARGE = [
    replace(
        case, causal="causal" in case.name, dtype=HALF if "float16" in case.name else case.dtype
    )
    for case in LARGE
]


@pytest.mark.parametrize(("case", "device"), on_devices(CASES, LARGE))
def test_results_and_tangents_are_right(case: TangentCase, device: str) -> None:
    asked = case.make(device)
    assert_right(asked, compute_tangent(asked))


@pytest.mark.parametrize(
    "changes",
    [
        {"consumers": 3, "B_c": 48, "stages": 4},
        {"B_c": 16, "stages": 1, "tile_order": TileOrder.ONE_EACH, "group_mib": 0},
        {"B_c": 112, "tile_order": TileOrder.PERSISTENT, "group_mib": 0},
        {"stages": 3, "B_c": 64, "rescale_threshold": 0, "group_mib": 0},
    ],
    ids=str,
)
def test_every_config_is_right(changes: dict[str, Any]) -> None:
    asked = TangentCase("", 200, 330, batch=2, heads=2, causal=True).make()
    assert_right(asked, compute_tangent(asked, replace(USUAL, **changes)))


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "lockstep"])
@pytest.mark.parametrize("d_head", [64, 128])
def test_every_order_of_the_warps_gives_the_same(
    d_head: int, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = TangentCase("", 150, 400, d_head, heads=2, causal=True).make()
    in_lockstep = compute_tangent(asked)
    monkeypatch.setattr(emulation, "Settings", lambda: Settings(schedule, 1))
    for found, wanted in zip(compute_tangent(asked), in_lockstep, strict=True):
        assert torch.equal(found, wanted)


def test_tangents_of_any_strides_are_read() -> None:
    asked = TangentCase("", 70, 90).make()
    wanted = compute_tangent(asked)
    call, q_tangent, *others = asked
    by_columns = q_tangent.transpose(1, 3).contiguous().transpose(1, 3)
    one_of_all = torch.ones(1, dtype=by_columns.dtype).expand(others[1].shape)
    found = compute_tangent(TangentCall(call, by_columns, *others))
    assert torch.equal(found.o_tangent, wanted.o_tangent)
    same = TangentCall(call, by_columns, others[0], one_of_all)
    assert_right(same, compute_tangent(same))


def test_numbers_of_a_call_are_its_own() -> None:
    case = TangentCase("", 20, 30, softcap=2.0)
    for other in (case, replace(case, softcap=0.5), replace(case, softmax_scale=0.5)):
        asked = other.make()
        assert_right(asked, compute_tangent(asked))


def test_large_tangents_do_not_overflow_in_half() -> None:
    call, *tangents = TangentCase("", 100, 300, dtype=HALF).make()
    large = TangentCall(call, *(300 * t for t in tangents))
    assert_right(large, compute_tangent(large))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_what_has_no_query_or_no_key_needs_no_kernel(shape: tuple[int, int]) -> None:
    found = compute_tangent(TangentCase("", *shape).make())
    assert torch.equal(found.o, torch.zeros(1, shape[0], 1, 64, dtype=torch.bfloat16))
    assert torch.all(found.lse == -torch.inf)
    assert not found.o_tangent.any()
    assert not found.lse_tangent.any()


@pytest.mark.parametrize("d_head", [64, 128])
def test_the_main_loop_keeps_everything_in_registers(d_head: int) -> None:
    problem = TangentProblem.of_pass(Problem.of(TangentCase("", 9, 9, d_head).make().call))
    unit = unit_of(select_config(problem, MEASURED_ARCH))
    resources = compile_kernel(unit.source, arch=unit.target, name=unit.name).resources
    assert resources.notes == ()  # products are not serialised
    assert resources.spill_store_bytes <= 16  # of numbers that the main loop does not read


@pytest.mark.parametrize(
    ("changes", "arch", "message"),
    [
        ({}, "sm_80", "with tangents on sm_80: a kernel for tangents needs sm_90"),
        ({"q": 136, "k": 136}, "sm_90", "tangents have head dimensions up to 128; compute it on"),
    ],
)
def test_what_the_kernel_lacks_is_refused(
    changes: dict[str, object], arch: str, message: str
) -> None:
    call = TangentCase("", 9, 9).make().call
    wide = {n: torch.zeros(1, 9, 1, d) for n, d in changes.items() if isinstance(d, int)}
    problem = Problem.of(Call(**{**call._asdict(), **changes, **wide}))
    with pytest.raises(UnsupportedError, match=message):
        select_config(TangentProblem.of_pass(replace(problem, dtype=HALF)), ARCHES[arch])
