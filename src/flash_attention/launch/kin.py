# SPDX-License-Identifier: Apache-2.0
"""The plans of calls whose sequences have lengths of their own.

Such calls have other lengths in every step of a serving engine, or of training on packed sequences.
They are kin if they differ in these alone. torch compares their tensors without the lengths in C++,
and a plan for new lengths follows from another one, without checks, choice and recipe.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch._C._dynamo import guards

from flash_attention.call.any_call import AnyCall
from flash_attention.call.call import kin_sizes
from flash_attention.launch.plan import Plan

TensorGuards: Any = getattr(guards, "TensorGuards", None)
"""torch's comparison; without one every plan is found by its key."""
MAX_LENGTHS = 1024  # of one kin; beyond that the oldest plan is dropped
MAX_MODELS = 16  # of one kin; beyond that all are dropped
MAX_KIN = 16  # of one kind of call, likewise
MAX_KINDS = 1024  # likewise
Key = tuple[object, ...]


class Kin(NamedTuple):
    """The plans of calls that differ in lengths alone."""

    are_alike: Callable[..., bool]  # compares the tensors of a call, apart from lengths
    models: list[Plan]  # plans that were made from the start, and that others follow from
    plans: OrderedDict[Key, Plan]  # by the lengths

    def plan(self, call: AnyCall, lengths: Key) -> Plan | None:
        """Return the plan of a call with new lengths if it follows from a model."""
        problem = self.models[0].resized_problem(call) if self.models else None
        if problem is None:
            return None
        for model in self.models:
            plan = model.sized_for(problem)
            if plan is not None:
                self.keep(plan, lengths)
                return plan
        return None

    def keep(self, plan: Plan, lengths: Key) -> None:
        """Keep the plan of some lengths, instead of the oldest one if there are many. To drop all
        at once would hold a step up."""
        if len(self.plans) >= MAX_LENGTHS:
            self.plans.popitem(last=False)
        self.plans[lengths] = plan


class Kindred:
    """All kin of this process, by the kind of call."""

    def __init__(self) -> None:
        self._kin: dict[Key, list[Kin]] = {}

    def find(
        self, call: AnyCall, kind: Key, tensors: Sequence[Tensor], lengths: Key
    ) -> Plan | None:
        """Return the plan of a call if its lengths are known, or if it follows from the plan of
        other lengths. This runs in every call with lengths of its own."""
        for kin in self._kin.get(kind, ()):
            if kin.are_alike(*tensors):
                return kin.plans.get(lengths) or kin.plan(call, lengths)
        return None

    def note(
        self,
        plan: Plan,
        call: AnyCall,
        kind: Key,
        tensors: Sequence[Tensor],
        lengths: Key,
    ) -> None:
        """Note the plan of a call that was not found. Sizes of 0 do not tell lengths apart."""
        if TensorGuards is None or plan.idle:
            return
        if len(self._kin) >= MAX_KINDS:
            self._kin.clear()
        every = self._kin.setdefault(kind, [])
        alike = [kin for kin in every if kin.are_alike(*tensors)]
        if not alike:
            if len(every) >= MAX_KIN:
                every.clear()
            every.append(Kin(_comparison(call, tensors), [], OrderedDict()))
        kin = alike[0] if alike else every[-1]
        kin.keep(plan, lengths)
        if plan.is_resizable and plan not in kin.models:
            if len(kin.models) >= MAX_MODELS:
                kin.models.clear()
            kin.models.append(plan)

    def clear(self) -> None:
        """Forget all plans."""
        self._kin.clear()


def _comparison(call: AnyCall, tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """Make the function that compares tensors with those of a call, apart from lengths."""
    names = {id(tensor): name for name, tensor in call.tensors().items()}
    return comparison(tensors, [kin_sizes(names[id(tensor)], tensor) for tensor in tensors])


def comparison(
    tensors: Sequence[Tensor], agreed: Sequence[tuple[Sequence[int | None], Sequence[int | None]]]
) -> Callable[..., bool]:
    """Make the function that compares tensors with these: their kind, and the sizes and strides
    that are no None. A tensor that is passed twice is like nothing."""
    how: dict[str, Any] = {
        "dynamic_dims_sizes": [list(sizes) for sizes, _ in agreed],
        "dynamic_dims_strides": [list(strides) for _, strides in agreed],
    }
    check: Callable[..., bool] = TensorGuards(*tensors, **how).check
    return check
