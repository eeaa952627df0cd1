# SPDX-License-Identifier: Apache-2.0
"""Nsight Compute's counters of the kernels that a Python program launches."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from flash_attention.errors import UnsupportedError

KERNELS = "regex:flash_(forward|combine)_kernel"
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
METRICS = {
    "kcycles": "sm__cycles_active.avg",
    "tensor pipe %": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "issue slots %": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "bank conflicts (millions)": "l1tex__data_bank_conflicts_pipe_lsu.sum",
    "waiting for shared memory": STALL.format("short_scoreboard"),
    "for global memory": STALL.format("long_scoreboard"),
    "at barriers": STALL.format("barrier"),
    "for the math pipe": STALL.format("math_pipe_throttle"),
    "for instructions": STALL.format("no_instruction"),
}
UNITS = {"kcycles": 1e3, "bank conflicts (millions)": 1e6}


def counters(
    program: Sequence[str], metrics: Mapping[str, str], kernels: str = KERNELS
) -> list[dict[str, float]]:
    """Run `python PROGRAM` under ncu; for every kernel whose name `kernels` matches, the metrics by
    our names for them."""
    if shutil.which("ncu") is None:
        raise UnsupportedError(
            "counters come from Nsight Compute, whose ncu is not on PATH; it is part of the CUDA"
            " toolkit, and of NVIDIA's package nsight-compute"
        )
    command = ["ncu", "--clock-control", "none", "--csv", "-k", kernels]
    command += ["--metrics", ",".join(metrics.values()), sys.executable, *program]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode != 0:
        said = "\n".join((result.stdout + result.stderr).strip().splitlines()[-5:])
        raise UnsupportedError(
            f"ncu ended with {result.returncode}; where it says ERR_NVGPUCTRPERM, counters are"
            f" reserved to administrators on this machine\n{said}"
        )
    return read_counters(result.stdout, metrics)


def read_counters(output: str, metrics: Mapping[str, str]) -> list[dict[str, float]]:
    """The CSV that ncu prints between its own messages, a kernel at a time."""
    values: dict[int, dict[str, float]] = {}
    for row in csv.DictReader(line for line in output.splitlines() if line.startswith('"')):
        with suppress(ValueError):  # "n/a" where this GPU does not count it
            number = float(row["Metric Value"].replace(",", ""))
            values.setdefault(int(row["ID"]), {})[row["Metric Name"]] = number
    if not values:
        said = "\n".join(output.strip().splitlines()[-5:])
        raise UnsupportedError(f"ncu counted nothing in any {KERNELS}\n{said}")
    for metric in metrics.values():
        if any(metric not in counted for counted in values.values()):
            raise UnsupportedError(f"ncu has no value for {metric} on this GPU")
    return [{name: v[metric] for name, metric in metrics.items()} for v in values.values()]


def in_units(counted: Mapping[str, float]) -> dict[str, float]:
    """Counters in the units that their names say."""
    return {name: value / UNITS.get(name, 1) for name, value in counted.items()}
