# SPDX-License-Identifier: Apache-2.0
"""Operations as expressions of CUDA C++, made of words of the library and of slot numbers only."""

from __future__ import annotations

import math
from typing import Final

import torch

from flash_attention.program.nodes import BOOL, Node

LIBRARY: Final = "fa::attn::function::"
FAST_TANH: Final = "fa::ptx::tanh({0})"  # to 2^-11, in one instruction, as softcap has it

_COMMON = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "__fdiv_rn({0}, {1})",
    "floordiv": LIBRARY + "floor_divide({0}, {1})",
    "mod": LIBRARY + "floor_remainder({0}, {1})",
    "min": LIBRARY + "smaller({0}, {1})",
    "max": LIBRARY + "larger({0}, {1})",
    "neg": "(-{0})",
    "abs": LIBRARY + "absolute({0})",
    "exp": "expf({0})",
    "exp2": "exp2f({0})",
    "log": "logf({0})",
    "sqrt": "sqrtf({0})",
    "tanh": "tanhf({0})",
    "sigmoid": LIBRARY + "sigmoid({0})",
    "floor": "floorf({0})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "and": "({0} & {1})",
    "or": "({0} | {1})",
    "xor": "({0} ^ {1})",
    "shl": "({0} << {1})",
    "shr": "({0} >> {1})",
    "select": "({0} ? {1} : {2})",
}
_READS = {
    torch.bool: "read_bool",
    torch.float16: "read_fp16",
    torch.bfloat16: "read_bf16",
    torch.float32: "read_float",
    torch.float64: "read_float",
}


def operation(node: Node, inputs: list[str]) -> str:
    """An operation on the texts of its inputs, exact to a rounding or two."""
    if node.op == "cast":
        if node.type == BOOL:
            return f"({inputs[0]} != 0)"
        return f"static_cast<{node.type}>({inputs[0]})"
    if node.op == "not":
        return f"(!{inputs[0]})" if node.type == BOOL else f"(~{inputs[0]})"
    text = _COMMON[node.op].format(*inputs)
    return (
        f"static_cast<bool>{text}"
        if node.op in ("and", "or", "xor") and node.type == BOOL
        else text
    )


def literal(node: Node) -> str:
    """A literal."""
    if node.type == BOOL:
        return str(node.detail)
    value = float(node.detail or 0)
    if math.isnan(value):
        return "__uint_as_float(0x7fffffffu)"
    if math.isinf(value):
        return f"__uint_as_float(0x{'7' if value > 0 else 'f'}f800000u)"
    return f"{value!r}f"


def is_leaf(node: Node) -> bool:
    """Whether a node is written where it is used: a coordinate, the score, a number, a literal."""
    return not node.inputs and node.op != "load"


def leaf(node: Node) -> str:
    """The text of a leaf."""
    if node.op == "literal":
        return literal(node)
    return f"args.number{node.detail}" if node.op == "number" else node.op


def store(dtype: torch.dtype) -> str:
    """The word of the library that stores a float as an element."""
    return _READS[dtype].replace("read", "store")


def unpack(dtype: torch.dtype) -> str:
    """The word of the library that takes an element of 16 bits out of a pair."""
    return f"{LIBRARY}{_READS[dtype].replace('read', 'unpack')}"


def read(dtype: torch.dtype, address: str) -> str:
    """The element at an address."""
    return f"{LIBRARY}{_READS.get(dtype, 'read_int')}({address})"
