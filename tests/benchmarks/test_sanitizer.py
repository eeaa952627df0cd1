# SPDX-License-Identifier: Apache-2.0
"""What is read from the reports of compute-sanitizer, and how kernels are described for it."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from benchmarks import sanitizer, sanitizer_launch
from benchmarks.render.sanitizer import sanitizer_block
from tests.emulator.annotated import Annotated

PRINTED = """========= COMPUTE-SANITIZER
kernel: 0
launch: success
kernel: 1
========= Error: Race reported between Write access at no_barrier_between_store_and_load+0xb0 in barriers.cu:70
=========     and Read access at no_barrier_between_store_and_load+0xc0 in barriers.cu:71 [256 hazards]
========= 
launch: success
kernel: 2
========= Invalid __global__ write of size 4 bytes
=========     at store_past_the_end+0xa0 in memory.cu:16
=========     by thread (36,0,0) in block (1,0,0)
========= 
========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) due to "unspecified launch failure"
========= 
launch: CUDA_ERROR_LAUNCH_FAILED
========= ERROR SUMMARY: 2 errors
"""  # noqa: E501, W291


def kernel(name: str) -> Annotated:
    (found,) = (k for k in sanitizer.kernels() if sanitizer.name_of(k) == f"plants/{name}")
    return found


@pytest.fixture
def three() -> list[Annotated]:
    names = ("memory/memory_nobody_wrote", "barriers/no_barrier_between_store_and_load")
    return [*map(kernel, names), kernel("memory/store_past_the_end"), kernel("memory/null_pointer")]


def test_reports_belong_to_the_kernels_that_they_name(
    three: list[Annotated], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sanitizer, "printed_by", lambda command, patience: (PRINTED, True))
    nobody, race, past = sanitizer.launched("racecheck", three, [])  # the last one did not start
    assert nobody == {"said": [], "at_line": False, "status": "success"}
    assert race["said"] == ["Error: Race reported between Write access"]
    assert (race["at_line"], race["status"]) == (True, "success")
    assert past["said"][0] == "Invalid __global__ write of size 4 bytes"
    assert past["status"] == "CUDA_ERROR_LAUNCH_FAILED"


def test_a_kernel_that_was_started_and_not_ended_hangs(
    three: list[Annotated], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = PRINTED[: PRINTED.index("launch: CUDA")]
    monkeypatch.setattr(sanitizer, "printed_by", lambda command, patience: (begun, False))
    assert [o["status"] for o in sanitizer.launched("memcheck", three, [])] == [
        *("success", "success"),
        sanitizer.HANGS,
    ]


def test_a_launch_has_the_arguments_of_the_emulator() -> None:
    in_place = sanitizer.description(kernel("memory/stencil_in_place"), Path("x.cubin"))
    data = np.arange(64, dtype=np.float32).tobytes().hex()
    assert in_place["buffers"] == [{"size": 256, "data": data}]
    assert in_place["arguments"] == [{"buffer": 0}, {"buffer": 0}]
    assert (in_place["grid"], in_place["block"]) == ((2, 1, 1), (32, 1, 1))
    far = sanitizer.description(kernel("memory/index_far_away"), Path("x.cubin"))
    assert far["buffers"][0] == {"size": 128, "data": None}  # nothing was written to it
    assert far["arguments"][2] == {"bytes": (1_000_000).to_bytes(4, "little").hex()}
    box = sanitizer.description(kernel("hopper_products/box_at_an_odd_column"), Path("x.cubin"))
    assert box["arguments"][1] == {
        "buffer": 1,
        **{"dims": (64, 64), "strides": (128,), "box": (64, 64), "swizzle": 128},
    }


def test_the_structures_are_those_of_the_driver() -> None:
    assert ctypes.sizeof(sanitizer_launch.Attribute) == 72
    assert ctypes.sizeof(sanitizer_launch.Config) == 56
    assert sanitizer_launch.Config.stream.offset == 32


def test_the_table_counts_what_is_reported() -> None:
    tools = {
        tool: {"said": said, "at_line": True, "status": status}
        for tool, said, status in (
            ("emulator", ["race"], "success"),
            ("no tool", [], "CUDA_ERROR_LAUNCH_FAILED"),
            ("memcheck", ["Program hit CUDA_ERROR_LAUNCH_FAILED"], "CUDA_ERROR_LAUNCH_FAILED"),
            ("racecheck", ["Error: Race"], "success"),
            ("initcheck", [], "success"),
            ("synccheck", [], "success"),
        )
    }
    record = {
        "sanitizer": "1.0",
        "alone_s": dict.fromkeys(tools, 0.5),
        "rows": [{"mistake": "race", "tools": tools}, {"mistake": "", "tools": tools}],
    }
    block = sanitizer_block(record, "here")
    assert "| `race` | 1 | 1 | 0 | 1 | 0 | 0 | 1 | 1 |" in block
    assert "| none: the kernel is right | 1 | 1 | 0 | 1 | 0 | 0 | 1 | 1 |" in block
    assert "| racecheck | Error: Race | 1 |" in block
    assert "memcheck | Program" not in block
    assert "Of the 1 reports of the tools 1 name the line" in block


def test_what_was_not_run_is_not_counted() -> None:
    outcome = {"said": [], "at_line": False, "status": "hangs"}
    rows = [
        {"mistake": "deadlock", "tools": {"emulator": outcome, "no tool": outcome}},
        {"mistake": "deadlock", "tools": {tool: outcome for tool in ("emulator", "memcheck")}},
    ]
    times = dict.fromkeys(("emulator", "no tool", *sanitizer.TOOLS), 0.5)
    block = sanitizer_block({"sanitizer": "1.0", "alone_s": times, "rows": rows}, "here")
    row = "| 2 | 0 | 0 of 1 | not run | not run | not run | not run | 1 of 1 |"
    assert f"| `deadlock` {row}" in block
