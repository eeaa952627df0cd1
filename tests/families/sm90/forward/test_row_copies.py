# SPDX-License-Identifier: Apache-2.0
"""Pages of fewer than eight keys, which have no boxes of TMA: warps copy their rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from flash_attention.arch import MEASURED_ARCH
from flash_attention.call.call import Call
from flash_attention.choose.heuristic import select_config
from flash_attention.launch.emulation import Settings
from flash_attention.launch.plan import Plan
from flash_attention_workbench.mends import NUMBERS
from ptx_emulator import SCHEDULES
from ptx_emulator.report.mends import DEADLOCK
from tests.devices import on_devices, ran
from tests.emulator.edits import Edit
from tests.families.sm90.planted import kinds_caught
from tests.serving_steps import Step, assert_right

CHUNK = Step((140, 3, 0, 1), (200, 77, 30, 139), page=1, d=128)
STEPS = {
    "pages of 1": CHUNK,
    "pages of 2, d 72": replace(CHUNK, page=2, d=72),
    "pages of 3, d 256": replace(CHUNK, page=3, d=256),
    "pages of 20, d 96": replace(CHUNK, page=20, d=96),
    "a window": replace(CHUNK, d=64, keywords=(("window", (40, 0)),), sinks=True),
    "decoding, d 40": Step((1, 1, 2), (300, 9, 64), page=1, d=40),
    "decoding, pages of 12": Step((1, 1), (200, 130), page=12, d=256),
}
LONG = {
    f"long, pages of {page}, d {d}": Step(
        (900, 1, 1, 300), (5000, 9000, 17, 300), page=page, d=d, heads=8
    )
    for page in (1, 4)
    for d in (64, 96, 128, 192, 256)
}


def planned(call: Call) -> Plan:
    """The plan of a step, as if there were enough tiles for all multiprocessors."""
    if call.q.is_cuda:
        return Plan(call)
    plan = Plan(call, arch=MEASURED_ARCH)
    if call.max_seqlen_q is None or call.max_seqlen_q < 64:
        return plan
    return Plan(call, select_config(plan.problem, MEASURED_ARCH), MEASURED_ARCH)


@pytest.mark.parametrize(("name", "device"), on_devices(STEPS, LONG))
def test_outputs_are_right(name: str, device: str) -> None:
    call = (STEPS | LONG)[name].call(device)
    plan = planned(call)
    assert "CopiedRows" in plan.recipe.steps[0].unit.source
    assert_right(call, *ran(plan, call, Settings(SCHEDULES[len(name) % len(SCHEDULES)])))


def test_pages_that_do_not_exist_are_zeros() -> None:
    call = replace(CHUNK, queries=(130,), keys=(150,)).call()
    assert call.block_table is not None
    call.block_table[0, 20:24] = -1
    call.block_table[0, 24:28] = 1 << 20
    plan = planned(call)
    out, lse = ran(plan, call, Settings(SCHEDULES[0]))
    zeroed = call._replace(k=call.k.clone(), v=call.v.clone(), block_table=call.block_table.clone())
    assert zeroed.block_table is not None
    unused = next(n for n in range(len(call.k)) if n not in call.block_table)
    zeroed.k[unused] = zeroed.v[unused] = 0
    zeroed.block_table[0, 20:28] = unused
    assert_right(zeroed, out, lse)


ROWS, PAGES = "sm90/row_copies.cuh", "sm90/page_producer.cuh"
MUTATIONS = {
    "another lane's page": (
        NUMBERS,
        Edit(
            ROWS, "numbers.number[i], (in_lanes + n * kTogether) / kBoxKeys", "numbers.number[i], 0"
        ),
    ),
    "no swizzle": (
        NUMBERS,
        Edit(
            ROWS, "to.chunk(row, p * kChunks + chunk)", "to.chunk(row, p * kChunks + (chunk ^ 1))"
        ),
    ),
    "one lane arrives": (
        DEADLOCK,
        Edit(
            ROWS, "ptx::cp_async_arrive(full);", "if (lane_id() == 0) ptx::cp_async_arrive(full);"
        ),
    ),
    "an arrival before the copies": (
        "race",
        Edit(ROWS, "ptx::cp_async_arrive(full);", "ptx::mbarrier_arrive(full);"),
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mistakes_are_found(name: str, tmp_path: Path) -> None:
    caught_by, edit = MUTATIONS[name]
    call = CHUNK.call()
    caught = kinds_caught(edit, tmp_path, planned(call), call, partial(assert_right, call))
    assert caught_by in caught, caught
