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
            msg="attention is given a score or mask function, which is traced outside of graphs:"
            " compile without fullgraph=True, or call attention outside of the compiled function"
        )
    if "torch._dynamo" not in sys.modules:  # and nothing is compiled; importing it takes seconds
        return function(*args, **kwargs)
    wrapped = _wrapped.get(function)
    if wrapped is None:
        wrapped = _wrapped[function] = torch.compiler.disable(function)
    return wrapped(*args, **kwargs)
