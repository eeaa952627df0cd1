# SPDX-License-Identifier: Apache-2.0
"""Clocks, power and temperature of a GPU, as nvidia-smi reads them at one moment."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flash_attention_workbench.bench.environment import output_of

_QUERIES = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "utilization.gpu")


@dataclass(frozen=True)
class Clocks:
    """What nvidia-smi says of a GPU; None is what it does not say."""

    sm_mhz: float | None
    memory_mhz: float | None
    watts: float | None
    celsius: float | None
    busy_percent: float | None  # by whoever used it in the last second

    def __str__(self) -> str:
        values = (self.sm_mhz, self.memory_mhz, self.watts, self.celsius, self.busy_percent)
        units = ("MHz SM", "MHz memory", "W", "C", "% busy")
        known = [f"{v:.0f} {unit}" for v, unit in zip(values, units, strict=True) if v is not None]
        return ", ".join(known) or "nothing known"


def read_clocks(device: torch.device) -> Clocks | None:
    """The state of one of torch's devices; None where there is no nvidia-smi to ask."""
    uuid = torch.cuda.get_device_properties(device).uuid
    answer = output_of(
        "nvidia-smi",
        f"--id=GPU-{uuid}",
        f"--query-gpu={','.join(_QUERIES)}",
        "--format=csv,noheader,nounits",
    )
    return parse_clocks(answer) if answer else None


def parse_clocks(line: str) -> Clocks | None:
    """The one line that nvidia-smi answers; what is "[N/A]" there is None."""
    fields = line.splitlines()[0].split(",")
    return Clocks(*map(_number, fields)) if len(fields) == len(_QUERIES) else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
