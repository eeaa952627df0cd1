# SPDX-License-Identifier: Apache-2.0
"""How random problems came out on a GPU, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.render.blocks import wrap

PROBLEMS = "random-problems"


def problems_block(record: Mapping[str, Any], where: str) -> str:
    """What benchmarks/random_problems.py found."""
    count, families = record["count"], record["families"]
    right = count - len(record["failures"])
    hopper, first = families.get("sm90", 0), families.get("sm80", 0)
    features = ", ".join(f"{name} {n:,}" for name, n in record["features"].items())
    return wrap(
        PROBLEMS,
        (
            f"{where}: {right:,} of {count:,} random problems right, {hopper:,} by Hopper kernels"
            f" and {first:,} by the first family, {record['kernels']} kernels in all. The largest"
            f" error was {record['worst']['share']:.0%} of what is allowed, that of a log-sum-exp"
            f" {record['worst_lse']['share']:.0%}. How many had what: {features}.",
        ),
    )
