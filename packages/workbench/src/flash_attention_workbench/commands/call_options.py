# SPDX-License-Identifier: Apache-2.0
"""The options that describe one call of `attention`: its shapes, its element type, its mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Protocol, get_type_hints

import torch
import typer
from torch import Tensor

from flash_attention.call.call import Window
from flash_attention.call.dtype import DType
from flash_attention.call.results import E4M3
from flash_attention.errors import UnsupportedError, quoted
from flash_attention.families.sm90.mla.d_heads import is_mla
from flash_attention.files import write_record
from flash_attention_workbench.commands.console import print_report
from flash_attention_workbench.commands.options import JsonOption
from flash_attention_workbench.text import ReportRow

MAX_ELEMENTS = 1 << 40


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
        base = _numbers("--shape", shape, "batch,seq,heads,heads_k,d", least=0)
        queries = base[1] if seq_q is None else seq_q
        width = base[4] if d is None else d
        sizes = cls(
            batch=base[0] if batch is None else batch,
            seq_q=queries,
            seq_k=queries if seq_k is None else seq_k,
            heads=heads or base[2],
            heads_k=heads_k or heads or base[3],
            d=width,
            d_v=width if d_v is None else d_v,
        )
        if sizes.elements > MAX_ELEMENTS:
            raise UnsupportedError(
                f"the sizes {quoted(astuple(sizes))} make a tensor of over {MAX_ELEMENTS:,}"
                " elements, which no GPU holds; pass smaller ones"
            )
        return sizes

    @property
    def scores(self) -> int:
        return self.batch * self.heads * self.seq_q * self.seq_k

    @property
    def elements(self) -> int:
        """Of the largest of q, k and v."""
        rows = max(self.seq_q * self.heads, self.seq_k * self.heads_k)
        return self.batch * rows * max(self.d, self.d_v)

    def meta(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v without memory."""
        of_q, of_k = (self.batch, self.seq_q, self.heads), (self.batch, self.seq_k, self.heads_k)
        q, k, v = (
            torch.empty(sizes, dtype=dtype, device="meta")
            for sizes in ((*of_q, self.d), (*of_k, self.d), (*of_k, self.d_v))
        )
        return q, k, k[..., : self.d_v] if is_mla(self.d, self.d_v) else v


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
        int | None,
        typer.Option(help="heads of q, and of k unless --heads-k says", min=1),
    ] = None
    heads_k: Annotated[int | None, typer.Option(help="heads of k and v", min=1)] = None
    d: Annotated[int | None, typer.Option("--d", help="head dimension of q and k", min=1)] = None
    d_v: Annotated[
        int | None,
        typer.Option(help="head dimension of v; that of q if left out", min=1),
    ] = None
    dtype: Annotated[str, typer.Option("--dtype", help="fp16, bf16 or e4m3")] = "bf16"
    causal: Annotated[
        bool, typer.Option("--causal", help="query i sees no key after i + seq_k - seq_q")
    ] = False
    window: Annotated[
        str | None, typer.Option(help="left,right: keys around its position; -1: no limit")
    ] = None
    softcap: Annotated[
        float, typer.Option(help="a score s becomes softcap tanh(s / softcap); 0: none")
    ] = 0.0
    dropout_p: Annotated[float, typer.Option(help="drop weights with this probability")] = 0.0
    split_keys: Annotated[int | None, typer.Option(help="decoding: keys of a split", min=1)] = None
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="rows do not depend on each other")
    ] = False
    lse: Annotated[bool, typer.Option("--lse", help="also the log-sum-exp")] = False
    config: Annotated[
        str | None, typer.Option(help="a kernel config, in its short form or as rung:5")
    ] = None
    gradients: Annotated[bool, typer.Option("--gradients", help="the backward pass as well")] = (
        False
    )
    backward_config: Annotated[
        str | None, typer.Option(help="the kernel config of the backward pass")
    ] = None
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="gradients with the same bits in every run")
    ] = False
    tangents: Annotated[
        bool, typer.Option("--tangents", help="in forward mode: the tangent of the output as well")
    ] = False
    json: JsonOption = None

    @property
    def sizes(self) -> CallShape:
        """The sizes of q, k and v."""
        parts = (self.batch, self.seq_q, self.seq_k, self.heads, self.heads_k, self.d, self.d_v)
        return CallShape.of(self.shape, *parts)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The element type of q, k and v."""
        return E4M3 if self.dtype == "e4m3" else DType.from_string(self.dtype).to_torch_dtype()

    @property
    def keywords(self) -> dict[str, Any]:
        """What the function of the same name as the command is told besides the tensors."""

        return {
            "causal": self.causal,
            "window": parse_window(self.window),
            "softcap": self.softcap,
            "dropout_p": self.dropout_p,
            "split_keys": self.split_keys,
            "batch_invariant": self.batch_invariant,
            "return_lse": self.lse,
            "config": self.config,
            "gradients": self.gradients,
            "backward_config": self.backward_config,
            "deterministic": self.deterministic,
            "tangents": self.tangents,
        }

    def tell(self, report: Report) -> None:
        """Write the report where `--json` says, and print it."""
        if self.json is not None:
            write_record(self.json, report.to_dict())
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


def _numbers(option: str, text: str, names: str, least: int = -1) -> list[int]:
    """As many whole numbers as there are names."""
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != len(names.split(",")) or min(numbers) < least:
        raise UnsupportedError(
            f"{option} is {quoted(text)}; pass whole numbers from {least} on, {names}"
        )
    return numbers
