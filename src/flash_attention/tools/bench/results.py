# SPDX-License-Identifier: Apache-2.0
"""The results file: what was measured, on what, by which command."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flash_attention.errors import UnsupportedError
from flash_attention.tools.bench.environment import describe

SCHEMA = 1


@dataclass(frozen=True)
class Row:
    """One contender at one shape. `number` is its rung, None for what is not on the ladder.

    `causal` rows were measured under a causal mask, as all are where the results say so.
    """

    contender: str
    number: int | None
    change: str
    config: str | None
    batch: int
    seq_len: int
    median_ms: float
    low_ms: float
    high_ms: float
    samples: int
    tflops: float
    max_error: float
    allowed_error: float
    causal: bool = False


@dataclass(frozen=True)
class Results:
    """One measuring run."""

    device: str
    driver: str
    nvrtc: str
    torch: str
    python: str
    commit: str | None
    date: str
    command: str
    dtype: str
    d_head: int
    n_heads: int
    rows: tuple[Row, ...]
    causal: bool = False
    schema: int = SCHEMA


def collect(
    rows: list[Row],
    *,
    device: torch.device,
    dtype: str,
    d_head: int,
    n_heads: int,
    causal: bool = False,
) -> Results:
    """`rows` together with everything needed to repeat them."""
    where: dict[str, Any] = describe(device)
    return Results(
        **where,
        command=" ".join(["flash-attention", *sys.argv[1:]]),
        dtype=dtype,
        d_head=d_head,
        n_heads=n_heads,
        rows=tuple(rows),
        causal=causal,
    )


def save(results: Results, path: Path) -> None:
    """Writes `results` as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dataclasses.asdict(results), indent=1) + "\n")


def load(path: Path) -> Results:
    """Reads what `save` wrote."""
    try:
        data = json.loads(path.read_text())
        if data["schema"] != SCHEMA:
            raise UnsupportedError(
                f"{path} has results schema {data['schema']}, this version reads {SCHEMA}; "
                "measure again with `flash-attention ladder run --json`"
            )
        rows = tuple(Row(**row) for row in data.pop("rows"))
        return Results(**data, rows=rows)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, UnsupportedError):
            raise
        raise UnsupportedError(f"{path} is not a results file: {error!r}") from error
