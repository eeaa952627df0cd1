# SPDX-License-Identifier: Apache-2.0
"""The options that describe one call of `attention`: its shapes, its element type, its mask."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from flash_attention.call.call import Window
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType

ShapeOption = Annotated[
    str,
    typer.Option("--shape", help="batch,seq,heads,heads of k,d; the options below change parts"),
]
BatchOption = Annotated[int | None, typer.Option("--batch", help="batch entries", min=0)]
SeqQOption = Annotated[int | None, typer.Option("--seq-q", help="queries", min=0)]
SeqKOption = Annotated[
    int | None, typer.Option("--seq-k", help="keys; as many as queries if left out", min=0)
]
HeadsQOption = Annotated[
    int | None,
    typer.Option("--heads", help="heads of q, and of k unless --heads-k says", min=1),
]
HeadsKOption = Annotated[int | None, typer.Option("--heads-k", help="heads of k and v", min=1)]
DOption = Annotated[int | None, typer.Option("--d", help="head dimension of q and k", min=1)]
DVOption = Annotated[
    int | None, typer.Option("--d-v", help="head dimension of v; that of q if left out", min=1)
]
MaskOption = Annotated[
    bool, typer.Option("--causal", help="query i sees no key after i + seq_k - seq_q")
]
WindowOption = Annotated[
    str | None, typer.Option("--window", help="left,right: keys around its place; -1: no limit")
]
SoftcapOption = Annotated[
    float, typer.Option("--softcap", help="a score s becomes softcap tanh(s / softcap); 0: none")
]
SplitKeysOption = Annotated[
    int | None, typer.Option("--split-keys", help="short queries: keys of a chunk", min=1)
]
LseOption = Annotated[bool, typer.Option("--lse", help="also the log-sum-exp")]
SelectedOption = Annotated[
    str | None,
    typer.Option("--config", help="a kernel config in its short form, not the one selected"),
]
JsonOption = Annotated[
    Path | None, typer.Option("--json", help="write the report here, - for standard output")
]
SHAPE = "4,2048,32,8,128"


@dataclass(frozen=True)
class CallShape:
    """The sizes of q, k and v."""

    batch: int
    seq_q: int
    seq_k: int
    heads: int
    heads_k: int
    d: int
    d_v: int

    @classmethod
    def of(
        cls,
        shape: str,
        batch: int | None,
        seq_q: int | None,
        seq_k: int | None,
        heads: int | None,
        heads_k: int | None,
        d: int | None,
        d_v: int | None,
    ) -> CallShape:
        """`shape`, with the parts replaced that are given by themselves."""
        base = _numbers("--shape", shape, "batch,seq,heads,heads_k,d")
        queries = base[1] if seq_q is None else seq_q
        width = base[4] if d is None else d
        return cls(
            batch=base[0] if batch is None else batch,
            seq_q=queries,
            seq_k=queries if seq_k is None else seq_k,
            heads=heads or base[2],
            heads_k=heads_k or heads or base[3],
            d=width,
            d_v=width if d_v is None else d_v,
        )

    @property
    def scores(self) -> int:
        return self.batch * self.heads * self.seq_q * self.seq_k

    def meta(self, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v without memory."""
        of_q, of_k = (self.batch, self.seq_q, self.heads), (self.batch, self.seq_k, self.heads_k)
        torch_dtype = DType.from_string(dtype).to_torch_dtype()
        q, k, v = (
            torch.empty(sizes, dtype=torch_dtype, device="meta")
            for sizes in ((*of_q, self.d), (*of_k, self.d), (*of_k, self.d_v))
        )
        return q, k, v


def parse_window(text: str | None) -> Window | None:
    """A window of an option's text."""
    if text is None:
        return None
    left, right = _numbers("--window", text, "left,right")
    return left, right


def _numbers(option: str, text: str, names: str) -> list[int]:
    """As many whole numbers as there are names."""
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != len(names.split(",")):
        raise UnsupportedError(f"{option} is {text!r}; pass whole numbers, {names}")
    return numbers


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    """The report in a file, or on standard output."""
    text = json.dumps(report, indent=1)
    if str(path) == "-":
        typer.echo(text)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    except OSError as error:
        raise UnsupportedError(f"cannot write {path}: {error.strerror}; pass a file") from error
