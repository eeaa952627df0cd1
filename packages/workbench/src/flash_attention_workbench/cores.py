# SPDX-License-Identifier: Apache-2.0
"""How many processors this process may use."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Count the processors of this process, or fewer if its container has a CPU quota."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return cores if quota is None else max(1, min(cores, round(quota)))


def _quota(cgroup: Path) -> float | None:
    """Return the CPU quota in processors, from control groups of version 2 or 1."""
    try:
        if (cgroup / "cpu.max").exists():
            time, period = (cgroup / "cpu.max").read_text().split()
        else:
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            time, period = ((cgroup / "cpu" / name).read_text().strip() for name in files)
        return int(time) / int(period) if int(time) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max": no quota
        return None
