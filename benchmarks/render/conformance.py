# SPDX-License-Identifier: Apache-2.0
"""How the emulator's instructions compare with a GPU's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.render.blocks import table, wrap

CONFORMANCE = "conformance"
FAMILY = re.compile(r"ldmatrix|stmatrix|mma|cp\.async")  # cases that are told as one


def conformance_block(record: Mapping[str, Any], where: str) -> str:
    """The results of benchmarks/conformance.py by family."""
    families: dict[str, list[Mapping[str, Any]]] = {}
    for row in record["rows"]:
        shared = FAMILY.match(row["case"])
        families.setdefault(shared.group() if shared else row["case"], []).append(row)
    lines = []
    for name, rows in families.items():
        agree = sum(row["ok"] for row in rows)
        inexact = [row for row in rows if row["ulp"]]
        worst = max((row["steps"] for row in inexact), default=0)
        equal = min((row.get("agrees", float(row["ok"])) for row in rows), default=1.0)
        allowed = max((row["ulp"] for row in inexact), default=0)
        distance = f"{worst} (allowed {allowed} + 1)" if inexact else "0"
        lines.append([name, f"{agree} of {len(rows)}", f"{100 * equal:.1f}%", distance])
    setting = f"{where}: emulator and GPU on the same inputs."
    header = ["family", "checks that agree", "equal bits, at least", "ulp apart, at most"]
    return wrap(CONFORMANCE, (setting, "", *table(header, lines, left=1)))
