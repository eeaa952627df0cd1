# SPDX-License-Identifier: Apache-2.0
"""The results file: what was measured, on what, by which command."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import Any

import torch

from flash_attention.errors import UnsupportedError
from flash_attention.files import (
    FilePath,
    naming,
    read_json,
    write_record,
)
from flash_attention.records import Positive, Size, read_record
from flash_attention_workbench.bench.environment import describe

SCHEMA = 1


@dataclass(frozen=True)
class Row:
    """One contender at one shape. `number` is its rung, None for what is not on the ladder."""

    contender: str
    number: int | None
    change: str
    config: str | None
    batch: Size
    seq_len: Size
    median_ms: float
    low_ms: float
    high_ms: float
    samples: int
    tflops: Positive
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
    pass_: str = "forward"
    schema: int = SCHEMA

    @property
    def setting(self) -> str:
        """Where and what, in a line."""
        mask = "causal mask" if self.causal else "no mask unless said"
        heads = f"{self.n_heads} heads of {self.d_head}"
        return f"{self.device}, {self.dtype}, {heads}, {self.pass_}, {mask}"


def collect(
    rows: list[Row],
    *,
    device: torch.device,
    dtype: str,
    d_head: int,
    n_heads: int,
    causal: bool = False,
    pass_: str = "forward",
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
        pass_=pass_,
    )


def save(results: Results, path: FilePath) -> None:
    """Writes `results` as JSON."""
    write_record(path, dataclasses.asdict(results))


def load(path: FilePath) -> Results:
    """Reads what `save` wrote."""
    what = "a results file, as `flash-attention ladder run --json` writes it"
    data = read_json(path, what)
    schema = data.get("schema") if isinstance(data, dict) else None
    if type(schema) is int and schema != SCHEMA:
        raise UnsupportedError(
            f"{path} has results schema {schema}, this version reads {SCHEMA}; "
            "measure again with `flash-attention ladder run --json`"
        )
    with naming(path, what):
        return read_record(data, Results)
