# SPDX-License-Identifier: Apache-2.0
"""torch's own context_parallel, with attention computed here.

torch.distributed.tensor.experimental.context_parallel shards tensors, and replaces
scaled_dot_product_attention by a function that calls torch's with DTensors. Those calls are taken
over here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import _attention as of_torch
from torch.overrides import TorchFunctionMode

from flash_attention.compat.sdpa import TORCH, Routed, autocast, no_kernel
from flash_attention.distributed.attention import attention
from flash_attention.distributed.dtensors import wrapped
from flash_attention.distributed.plan import Plan, make_plan
from flash_attention.distributed.spans import Span, joined
from flash_attention.errors import UnsupportedError

ROWS = 2  # of (batch, heads, rows, d)


@contextmanager
def serve_context_parallel(*, schedule: str = "auto", strict: bool = False) -> Iterator[Routed]:
    """Compute attention in a block of torch's `context_parallel` here.

    ```
    with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]), serve_context_parallel():
        loss = model(x)
    ```

    - `schedule`: as in `attention`.
    - `strict`: raise UnsupportedError for a call that is not supported here, as one with a mask
      tensor. Otherwise torch computes it, and `Routed.to_torch` counts it by reason.

    The block yields a Routed. Rows are where torch puts them: two pieces for each rank if it
    balances load, which it does by default and which needs lengths that 2 * ranks divides, or one.
    The backward pass may run outside of the block.
    """
    mode = _Served(schedule, strict)
    with mode:
        yield mode.routed


class _Served(TorchFunctionMode):
    def __init__(self, schedule: str, strict: bool) -> None:
        super().__init__()
        self.schedule, self.strict, self.routed = schedule, strict, Routed()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        tensors = (*args[:3], *kwargs.values())
        if func is not TORCH or not any(isinstance(tensor, DTensor) for tensor in tensors):
            return func(*args, **kwargs)
        try:
            out = self.attention(*args, **kwargs)
        except UnsupportedError as error:
            if self.strict:
                raise
            self.routed.to_torch[str(error)] += 1
            return func(*args, **kwargs)
        self.routed.here += 1
        return out

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Compute torch's scaled_dot_product_attention of DTensors."""
        mesh, rows = _placed(query, key, value)
        assert isinstance(query, DTensor)
        local = autocast(*(t.to_local() for t in (query, key, value) if isinstance(t, DTensor)))
        if attn_mask is not None:
            raise UnsupportedError(
                "attn_mask is given, and there are no masks of shared sequences; for a causal mask"
                " pass is_causal=True"
            )
        if reason := no_kernel(local, None, enable_gqa):
            raise UnsupportedError(reason)
        if dropout_p:
            raise UnsupportedError(
                f"dropout_p is {dropout_p}, and there is no dropout of shared sequences; pass 0.0"
            )
        q, k, v = (t.transpose(1, 2) for t in local)
        out = attention(
            *(q, k, v, mesh),
            plan=_plan(rows, mesh.size(), bool(of_torch._cp_options.enable_load_balance)),
            schedule=self.schedule,
            causal=is_causal,
            softmax_scale=scale,
        )
        return wrapped(out.transpose(1, 2), query, rows_dim=ROWS, rows=rows)


def _placed(*tensors: Tensor) -> tuple[Any, int]:
    """The mesh and the rows of DTensors as context_parallel makes them."""
    first = tensors[0]
    for tensor in tensors:
        if (
            not isinstance(tensor, DTensor)
            or tensor.placements != (Shard(ROWS),)
            or tensor.shape[ROWS] != first.shape[ROWS]
        ):
            raise UnsupportedError(
                "query, key and value must be sharded along a sequence of one length, as"
                " context_parallel shards them"
            )
    assert isinstance(first, DTensor)
    return first.device_mesh, first.shape[ROWS]


@lru_cache(maxsize=64)
def _plan(total: int, ranks: int, balanced: bool) -> Plan:
    """The plan that torch has followed."""
    if not balanced:
        return make_plan(total, ranks, placement="contiguous")
    rows = total // (2 * ranks)
    pairs = ((rank, 2 * ranks - 1 - rank) for rank in range(ranks))
    pieces = (joined(Span(i * rows, (i + 1) * rows) for i in pair) for pair in pairs)
    return Plan((0, total), tuple(pieces))
