# SPDX-License-Identifier: Apache-2.0
"""How random problems came out on a GPU, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.render.blocks import wrap

PROBLEMS = "random-problems"
NAMES = {
    "an empty entry": "an empty sequence",
    "another d": "d other than 64 and 128",
    "another d_v": "d_v other than d",
    "cut blocks": "lengths that tiles of 128 do not divide",
    "lse": "log-sum-exp returned",
    "pages": "paged KV cache",
    "rows of no entry": "rows outside of every sequence",
    "scale": "softmax_scale",
    "shared heads": "grouped-query heads",
}
"""Features that the documents call otherwise than the results do."""


def problems_block(record: Mapping[str, Any], where: str) -> str:
    """What benchmarks/random_problems.py found."""
    count, families = record["count"], record["families"]
    right = count - len(record["failures"])
    sm90, sm80 = families.get("sm90", 0), families.get("sm80", 0)
    features = ", ".join(f"{NAMES.get(name, name)} {n:,}" for name, n in record["features"].items())
    return wrap(
        PROBLEMS,
        (
            f"{where}: {right:,} of {count:,} random problems were right, {sm90:,} of them computed"
            f" by sm_90 kernels and {sm80:,} by sm_80 kernels. {record['kernels']} kernels ran. The"
            f" largest error of an output was {record['worst']['share']:.0%} of what is allowed,"
            f" and that of a log-sum-exp {record['worst_lse']['share']:.0%}. The number of problems"
            f" with each feature: {features}.",
        ),
    )
