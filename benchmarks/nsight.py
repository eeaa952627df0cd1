# SPDX-License-Identifier: Apache-2.0
"""Nsight Compute's counters of the kernels that a script launches."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Mapping


def counters(script: str, metrics: Mapping[str, str]) -> list[dict[str, float]]:
    """Run `script --run` under ncu; for every kernel, the metrics by our names for them."""
    command = ["ncu", "--clock-control", "none", "--csv", "-k", "regex:flash_forward_kernel"]
    command += ["--metrics", ",".join(metrics.values()), sys.executable, script, "--run"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    values: dict[int, dict[str, float]] = {}
    for row in csv.DictReader(line for line in output.splitlines() if line.startswith('"')):
        number = float(row["Metric Value"].replace(",", ""))
        values.setdefault(int(row["ID"]), {})[row["Metric Name"]] = number
    return [{name: v[metric] for name, metric in metrics.items()} for v in values.values()]
