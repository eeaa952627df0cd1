# SPDX-License-Identifier: Apache-2.0
"""The speeds of one GPU that the model of distributed attention computes with.

`python -m benchmarks.render.rates` writes them into the package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flash_attention.distributed.cost.machine import MEASURED
from flash_attention_workbench.bench.stored import read_file

FILES = {"forward": "h200_hopper_grid_bf16.json", "backward": "h200_backward_bf16.json"}
PEAKS = "h200_peaks.json"


def measured_rates(folder: Path) -> dict[str, Any]:
    """TFLOP/s by pass, head dimension, mask and length, from stored results."""
    records = {pass_: read_file(folder / name).record for pass_, name in FILES.items()}
    peaks = read_file(folder / PEAKS).record
    return {
        "device": peaks["device"],
        "dtype": "BF16",
        "commits": {pass_: record["commit"] for pass_, record in records.items()},
        "copy_tb_s": peaks["peak"]["copy_tb_s"],
        "tflops": {pass_: _by_shape(record) for pass_, record in records.items()},
    }


def _by_shape(record: Mapping[str, Any]) -> dict[str, dict[str, list[list[float]]]]:
    found: dict[str, dict[str, list[list[float]]]] = {}
    for row in record["rows"]:
        if row["selected"]:
            masks = found.setdefault(str(row["d"]), {})
            speeds = masks.setdefault("causal" if row["causal"] else "full", [])
            speeds.append([row["seq"], round(row["tflops"], 1)])
    return found


def write_rates(folder: Path) -> None:
    """Bring the speeds in the package up to date."""
    MEASURED.write_text(json.dumps(measured_rates(folder), indent=1) + "\n")


if __name__ == "__main__":
    write_rates(Path("results"))
