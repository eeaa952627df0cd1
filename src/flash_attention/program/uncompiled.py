# SPDX-License-Identifier: Apache-2.0
"""Calls that torch.compile runs as they are, between two graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

_wrapped: dict[Callable[..., Any], Callable[..., Any]] = {}


def uncompiled(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of which torch.compile sees nothing. If it traces the caller, its graph ends
    here. With fullgraph=True torch raises an error that has the message below."""
    if torch.compiler.is_dynamo_compiling():
        torch._dynamo.graph_break(
            msg="a score or mask function captures a tensor that requires grad: capture"
            " tensor.detach(), or call under torch.no_grad(). Or it calls what torch.compile does"
            " not follow, such as Python's abs in place of torch.abs: change that, or make a"
            " flash_attention.Function of it outside of the compiled function. Or compile without"
            " fullgraph=True"
        )
    if "torch._dynamo" not in sys.modules:  # and nothing is compiled; importing it takes seconds
        return function(*args, **kwargs)
    wrapped = _wrapped.get(function)
    if wrapped is None:
        wrapped = _wrapped[function] = torch.compiler.disable(function)
    return wrapped(*args, **kwargs)
