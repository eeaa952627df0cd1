# SPDX-License-Identifier: Apache-2.0
"""The arguments of the operators that torch.compile sees, as a call has them."""

from __future__ import annotations

from typing import Any

import torch

from flash_attention.call.call import DESCALES
from flash_attention.call.function import Function
from flash_attention.program.nodes import FLOAT, INT

PACKED = {
    "cu_seqlens_q": "Tensor? cu_seqlens_q",
    "cu_seqlens_k": "Tensor? cu_seqlens_k",
    "max_seqlen_q": "int? max_seqlen_q",
    "max_seqlen_k": "int? max_seqlen_k",
}
"""The arguments of packed sequences, in the schema of an operator."""
FUNCTION = {
    "program": "str? program=None",
    "captured": "Tensor[]? captured=None",
    "integers": "SymInt[]? integers=None",
    "floats": "float[]? floats=None",
}
"""A score and mask function: the text of its program, and what it captured, in the schema of an
operator."""
ASKED = {
    "sinks": "Tensor? sinks=None",
    "seqused_k": "Tensor? seqused_k=None",
    "causal": "bool causal=False",
    "window_left": "int window_left=-1",
    "window_right": "int window_right=-1",
    "softmax_scale": "float? softmax_scale=None",
    "softcap": "float softcap=0.0",
    "config": "str? config=None",
    "block_table": "Tensor? block_table=None",
    "split_keys": "int? split_keys=None",
    "batch_invariant": "bool batch_invariant=False",
    "backward_config": "str? backward_config=None",
    "deterministic": "bool deterministic=False",
    **{name: f"Tensor? {name}=None" for name in (*DESCALES, "rng_state")},
    "dropout_p": "float dropout_p=0.0",
    "return_max": "bool return_max=False",
    **FUNCTION,
}
"""The arguments of both operators, in their schema."""
TENSORS = {"q": "Tensor q", "k": "Tensor k", "v": "Tensor v"}
OF_GRADIENTS = {
    "do": "Tensor do",
    "dlse": "Tensor? dlse",
    "out": "Tensor out",
    "lse": "Tensor lse",
    "wanted": "bool[] wanted",
}
"""The arguments that only the backward operators have, in their schema."""
ONLY_FORWARD = ("config", "block_table", "split_keys", "batch_invariant", *DESCALES, "return_max")
SHARED = ("sinks", "seqused_k", "rng_state", "causal", "softmax_scale", "softcap", "dropout_p")
"""The arguments that all operators take as a call has them."""
DIFFERENTIABLE = ("q", "k", "v", "sinks")


def arguments_of(function: Function | None, device: torch.device) -> dict[str, Any]:
    """A score and mask function as arguments of an operator. Tensors of one element may be on the
    CPU, as numbers are."""
    if function is None:
        return {}
    return {
        "program": function.text,
        "captured": [t.to(device) if not t.ndim else t for t in function.tensors],
        "integers": function.numbers_of(INT),
        "floats": function.numbers_of(FLOAT),
    }


def keywords_of(asked: dict[str, Any]) -> dict[str, Any]:
    """Arguments of an operator as keywords of a call."""
    rest = dict(asked)
    rest["window"] = rest.pop("window_left", -1), rest.pop("window_right", -1)
    text, *captured = (rest.pop(name, None) for name in FUNCTION)
    if text is not None:
        rest["function"] = Function.written(text, *(each or () for each in captured))
    return rest
