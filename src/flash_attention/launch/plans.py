# SPDX-License-Identifier: Apache-2.0
"""Plans by their keys, and the recent ones, which are found without making a key.

torch compares tensors with the types, shapes, strides and devices of earlier ones in C++, as it
does before it runs a compiled function. That takes a third of the time of making a key of them.
One plan is noted for each kind of call. The numbers of elements of q and of k belong to the kind,
so that programs whose calls alternate between lengths find the plans of all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch import Tensor
from torch._C._dynamo import guards

TensorGuards: Any = getattr(guards, "TensorGuards", None)
"""torch's comparison; without one every plan is found by its key."""
MAX_PLANS = 8192  # beyond that all are dropped, for programs whose shapes keep changing
Key = tuple[object, ...]
Planned = TypeVar("Planned")


class Plans(Generic[Planned]):
    """Plans by everything that they depend on."""

    def __init__(self) -> None:
        self._planned: dict[Key, Planned] = {}
        self._recent: dict[Key, tuple[Callable[..., bool], Planned]] = {}
        self.get = self._planned.get

    def add(self, key: Key, plan: Planned) -> None:
        """Keep a plan under its key."""
        if len(self._planned) >= MAX_PLANS:
            self.clear()
        self._planned[key] = plan

    def recent(self, kind: Key, *tensors: Tensor) -> Planned | None:
        """Return the last plan that was noted for a kind of call, if these tensors are like those
        that it was noted for."""
        noted = self._recent.get(kind)
        return noted[1] if noted is not None and noted[0](*tensors) else None

    def note(self, plan: Planned, kind: Key, *tensors: Tensor) -> None:
        """Note the plan of a call. `kind` has the part of its key that is no part of `tensors`."""
        if TensorGuards is None or len(set(map(id, tensors))) < len(tensors):
            return  # to torch, a tensor that is passed twice is like nothing
        if len(self._recent) >= MAX_PLANS:
            self._recent.clear()
        sizes: dict[str, Any] = {
            "dynamic_dims_sizes": [list(tensor.shape) for tensor in tensors],
            "dynamic_dims_strides": [list(tensor.stride()) for tensor in tensors],
        }
        self._recent[kind] = TensorGuards(*tensors, **sizes).check, plan

    def clear(self) -> None:
        """Forget all plans."""
        self._planned.clear()
        self._recent.clear()
