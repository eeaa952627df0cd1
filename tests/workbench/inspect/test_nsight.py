# SPDX-License-Identifier: Apache-2.0
"""What ncu prints is read; without ncu, and when it fails, the error says what to do."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import parse_kernel_config
from flash_attention_workbench.inspect import nsight
from flash_attention_workbench.inspect.launch import program

METRICS = {"kcycles": "sm__cycles_active.avg", "at barriers": nsight.STALL.format("barrier")}
PRINTED = f"""\
==PROF== Connected to process 4711
==PROF== Profiling "flash_forward_kernel" - 0: 0%....50%....100% - 1 pass
==PROF== Disconnected from process 4711
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","flash_forward_kernel","{METRICS["kcycles"]}","cycle","1,234,500.25"
"0","flash_forward_kernel","{METRICS["at barriers"]}","inst","0.75"
"1","flash_forward_kernel","{METRICS["kcycles"]}","cycle","2000"
"1","flash_forward_kernel","{METRICS["at barriers"]}","inst","0"
"""


def test_kernels_in_their_order_by_our_names() -> None:
    first, second = nsight.read_counters(PRINTED, METRICS)
    assert first == {"kcycles": 1234500.25, "at barriers": 0.75}
    assert nsight.in_units(second) == {"kcycles": 2.0, "at barriers": 0.0}


def test_counters_that_are_not_there_are_named() -> None:
    with pytest.raises(UnsupportedError, match=r"counted nothing(?s:.*)No kernels were profiled"):
        nsight.read_counters("==WARNING== No kernels were profiled.\n", METRICS)
    with pytest.raises(UnsupportedError, match=r"no value for sm__cycles_active\.avg on this GPU"):
        nsight.read_counters(PRINTED.replace('"2000"', '"n/a"'), METRICS)


def test_the_program_runs_under_ncu(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **settings: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, PRINTED, "")

    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    config = parse_kernel_config("hopper(BF16, 128, 2, 128, 1): tma")
    nsight.counters(program(config, (4, 512, 16), causal=True), METRICS)
    (command,) = commands
    assert command[0] == "ncu"
    assert command[command.index("--metrics") + 1] == ",".join(METRICS.values())
    asked = [config.short_form(), "4", "512", "16", "causal"]
    assert command[-8:] == [
        sys.executable,
        "-m",
        "flash_attention_workbench.inspect.launch",
        *asked,
    ]


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UnsupportedError, match="ncu is not on PATH"):
        nsight.counters(["nothing"], METRICS)
    failed = subprocess.CompletedProcess([], 1, "==ERROR== ERR_NVGPUCTRPERM - no permission\n", "")
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", lambda command, **settings: failed)
    with pytest.raises(UnsupportedError, match=r"reserved to administrators(?s:.*)no permission"):
        nsight.counters(["nothing"], METRICS)
