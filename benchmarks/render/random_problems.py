# SPDX-License-Identifier: Apache-2.0
"""How random problems came out on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.render.blocks import table, wrap

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
ABREAST = 3  # features in a row of a table


def problems_block(record: Mapping[str, Any], where: str) -> str:
    """What benchmarks/random_problems.py found."""
    count, families = record["count"], record["families"]
    right = count - len(record["failures"])
    sm90, sm80 = families.get("sm90", 0), families.get("sm80", 0)
    return wrap(
        PROBLEMS,
        (
            f"{where}: {right:,} of {count:,} random problems were right, {sm90:,} of them computed"
            f" by sm_90 kernels and {sm80:,} by sm_80 kernels. {record['kernels']} kernels ran. The"
            f" largest error of an output was {record['worst']['share']:.0%} of what is allowed,"
            f" and that of a log-sum-exp {record['worst_lse']['share']:.0%}.",
            "",
            *features_table(record["features"]),
        ),
    )


def features_table(features: Mapping[str, int]) -> list[str]:
    """How many problems have each feature."""
    cells = [cell for name, n in features.items() for cell in (NAMES.get(name, name), f"{n:,}")]
    header = ["feature", "problems"] * ABREAST
    rows = [cells[i : i + len(header)] for i in range(0, len(cells), len(header))]
    rows[-1] += [""] * (len(header) - len(rows[-1]))
    return table(header, rows, left=len(header))
