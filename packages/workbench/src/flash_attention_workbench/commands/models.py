# SPDX-License-Identifier: Apache-2.0
"""The attention of a served model in words: heads=32 heads_k=8 d=128 page=16 window=128 sinks."""

from __future__ import annotations

from typing import Any

import torch

from flash_attention.call.call import Call
from flash_attention.call.dtype import DType
from flash_attention.call.results import E4M3
from flash_attention.errors import UnsupportedError, quoted
from flash_attention_workbench.bench.choices import checked_choice
from flash_attention_workbench.bench.grid_file import whole_number

EXAMPLE = "heads=32 heads_k=8 d=128 page=16"
NUMBERS = ("heads", "heads_k", "d", "page", "window")
DTYPES = ("dtype", "q", "kv")  # of all tensors, and what q, or k and v have instead
SINKS = "sinks"
WORDS = (*NUMBERS, "softcap", *DTYPES, SINKS)
META = torch.device("meta")


def read_model(text: str) -> Call:
    """A call without memory that the model's attention makes: packed queries over pages."""
    words: dict[str, str] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        words[checked_choice("word", name, WORDS)] = value
        if name == SINKS and equals:
            raise UnsupportedError(f"{quoted(word)} has a value; pass {SINKS} alone")
    if missing := [name for name in NUMBERS[:4] if name not in words]:
        raise UnsupportedError(
            f"{', '.join(missing)} missing in {quoted(text)}; such as {EXAMPLE!r}"
        )
    numbers = {name: whole_number(name, words[name]) for name in NUMBERS if name in words}
    heads, heads_k, d, page = (numbers[name] for name in NUMBERS[:4])
    dtype = words.get("dtype", "bf16")
    q_dtype, kv_dtype = (_dtype(words.get(name, dtype)) for name in ("q", "kv"))
    options: dict[str, Any] = {"softcap": _softcap(words.get("softcap", "0"))}
    if "window" in numbers:
        options["window"] = (numbers["window"] - 1, 0)
    if SINKS in words:
        options["sinks"] = torch.empty(heads, device=META)
    eight = {"q_descale": q_dtype, "k_descale": kv_dtype, "v_descale": kv_dtype}
    options |= {name: torch.empty(1, device=META) for name, of in eight.items() if of == E4M3}
    k, v = (torch.empty(1, page, heads_k, d, dtype=kv_dtype, device=META) for _ in "kv")
    one, starts, table = (torch.empty(n, dtype=torch.int32, device=META) for n in (1, 2, (1, 1)))
    return Call(
        *(torch.empty(1, heads, d, dtype=q_dtype, device=META), k, v),
        cu_seqlens_q=starts,
        max_seqlen_q=1,
        seqused_k=one,
        block_table=table,
        causal=True,
        **options,
    )


def _softcap(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UnsupportedError(f"softcap is {quoted(text)}; pass a number") from None


def _dtype(name: str) -> torch.dtype:
    return E4M3 if name == "e4m3" else DType.from_string(name).to_torch_dtype()
