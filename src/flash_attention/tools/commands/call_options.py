# SPDX-License-Identifier: Apache-2.0
"""The options that describe one call of `attention`: its shapes, its element type, its mask."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Protocol, get_type_hints

import torch
import typer
from torch import Tensor

from flash_attention.call.call import Window
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType
from flash_attention.tools.commands.console import print_report
from flash_attention.tools.commands.options import DTypeOption
from flash_attention.tools.text import ReportRow


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


@dataclass(frozen=True)
class CallOptions:
    """The options that describe a call, as commands declare them."""

    shape: Annotated[
        str,
        typer.Option(help="batch,seq,heads,heads of k,d; the options below change parts"),
    ] = "4,2048,32,8,128"
    batch: Annotated[int | None, typer.Option(help="sequences", min=0)] = None
    seq_q: Annotated[int | None, typer.Option(help="queries", min=0)] = None
    seq_k: Annotated[
        int | None, typer.Option(help="keys; as many as queries if left out", min=0)
    ] = None
    heads: Annotated[
        int | None, typer.Option(help="heads of q, and of k unless --heads-k says", min=1)
    ] = None
    heads_k: Annotated[int | None, typer.Option(help="heads of k and v", min=1)] = None
    d: Annotated[int | None, typer.Option("--d", help="head dimension of q and k", min=1)] = None
    d_v: Annotated[
        int | None, typer.Option(help="head dimension of v; that of q if left out", min=1)
    ] = None
    dtype: DTypeOption = "bf16"
    causal: Annotated[
        bool, typer.Option("--causal", help="query i sees no key after i + seq_k - seq_q")
    ] = False
    window: Annotated[
        str | None, typer.Option(help="left,right: keys around its position; -1: no limit")
    ] = None
    softcap: Annotated[
        float, typer.Option(help="a score s becomes softcap tanh(s / softcap); 0: none")
    ] = 0.0
    split_keys: Annotated[
        int | None, typer.Option(help="short queries: keys of a chunk", min=1)
    ] = None
    lse: Annotated[bool, typer.Option("--lse", help="also the log-sum-exp")] = False
    config: Annotated[
        str | None, typer.Option(help="a kernel config, in its short form or as rung:5")
    ] = None
    json: Annotated[
        Path | None, typer.Option(help="write the report here, - for standard output")
    ] = None

    @property
    def sizes(self) -> CallShape:
        """The sizes of q, k and v."""
        parts = (self.batch, self.seq_q, self.seq_k, self.heads, self.heads_k, self.d, self.d_v)
        return CallShape.of(self.shape, *parts)

    @property
    def keywords(self) -> dict[str, Any]:
        """What the function of the same name as the command is told besides the tensors."""
        return {
            "causal": self.causal,
            "window": parse_window(self.window),
            "softcap": self.softcap,
            "split_keys": self.split_keys,
            "return_lse": self.lse,
            "config": self.config,
        }

    def tell(self, report: Report) -> None:
        """Write the report where `--json` says, and print it unless that is standard output."""
        if self.json is not None:
            write_json(self.json, report.to_dict())
        if str(self.json) != "-":
            print_report(report.rows())


class Report(Protocol):
    """What a command tells."""

    def rows(self) -> list[ReportRow]: ...
    def to_dict(self) -> dict[str, Any]: ...


def takes_call(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of `CallOptions` before its own; it gets them as one."""
    hints = get_type_hints(CallOptions, include_extras=True)
    own_hints = get_type_hints(command, include_extras=True)
    shared = [
        Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
        for f in fields(CallOptions)
    ]
    own = [
        p.replace(kind=Parameter.KEYWORD_ONLY, annotation=own_hints[p.name])
        for p in list(signature(command).parameters.values())[1:]
    ]

    @wraps(command)
    def with_options(**given: Any) -> None:
        options = CallOptions(**{p.name: given.pop(p.name) for p in shared})
        command(options, **given)

    vars(with_options)["__signature__"] = Signature([*shared, *own])
    with_options.__annotations__ = {p.name: p.annotation for p in (*shared, *own)}
    return with_options


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
