# SPDX-License-Identifier: Apache-2.0
"""What a call says besides q, k and v: options, and tensors that may be left out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypedDict

from torch import Tensor

Window = tuple[int | None, int | None]
"""Keys before and after a query's own place that it sees; None or -1: all."""


class Options(NamedTuple):
    """The options of a call, as its caller gave them."""

    causal: bool = False
    window: Window | None = None
    softmax_scale: float | None = None
    softcap: float = 0.0
    return_lse: bool = False
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None
    split_keys: int | None = None


class Extras(NamedTuple):
    """The tensors of a call that may be left out."""

    sinks: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    seqused_k: Tensor | None = None
    block_table: Tensor | None = None

    def given(self) -> dict[str, Tensor]:
        """Those that are there, by name."""
        return {name: tensor for name, tensor in self._asdict().items() if tensor is not None}


DEFAULTS = Options()
NO_EXTRAS = Extras()

_OptionValues = tuple[
    bool, Window | None, float | None, float, bool, int | None, int | None, int | None
]  # the fields of Options in their order

# Half the cost of Options(...), which every call of a kernel would pay.
options_of: Callable[[_OptionValues], Options] = partial(tuple.__new__, Options)


def extras_of(
    sinks: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    seqused_k: Tensor | None,
    block_table: Tensor | None,
) -> Extras:
    """The tensors together; `NO_EXTRAS` itself where there are none."""
    if (
        sinks is None
        and cu_seqlens_q is None
        and cu_seqlens_k is None
        and seqused_k is None
        and block_table is None
    ):
        return NO_EXTRAS
    return Extras(sinks, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table)


class Keywords(TypedDict, total=False):
    """The keyword arguments of a call but for return_lse, for the overloads that depend on it."""

    causal: bool
    window: Window | None
    softmax_scale: float | None
    softcap: float
    sinks: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    seqused_k: Tensor | None
    block_table: Tensor | None
    split_keys: int | None
