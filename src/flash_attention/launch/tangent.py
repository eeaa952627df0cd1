# SPDX-License-Identifier: Apache-2.0
"""TangentPreparation: q, k, v and their tangents become arguments of a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flash_attention.call.problem import Problem
from flash_attention.call.tangent_call import TangentCall, WithTangent
from flash_attention.call.tensors import TensorView
from flash_attention.families.fit import check_pointers
from flash_attention.families.recipe import Recipe
from flash_attention.families.sm90.tangent.args import FIRST_TANGENT, pack_tangents
from flash_attention.launch.launcher import Launcher, Sized
from flash_attention.launch.preparation import ForwardPreparation, Preparation

_empty_like = torch.empty_like


class TangentPreparation(Preparation[TangentCall, WithTangent]):
    """Prepares calls with tangents: a forward call that returns its lse, and what is added."""

    def __init__(
        self,
        call: TangentCall,
        problem: Problem,
        views: Sequence[TensorView],
        recipe: Recipe,
        launcher: Launcher,
        alignment: int,
    ) -> None:
        super().__init__(recipe, launcher, {}, alignment)
        shared = (problem, views[:4], recipe, launcher, alignment)
        self._forward = ForwardPreparation(call.call.with_lse(), *shared)
        self.spare = self._forward.spare

    def prepare(
        self, call: TangentCall, sized: Sized, *, with_results: bool = True
    ) -> tuple[Any, Any]:
        of_call, a, b, c = call
        pointers = a.data_ptr(), b.data_ptr(), c.data_ptr()
        if (pointers[0] | pointers[1] | pointers[2]) % self._alignment:
            given = (TensorView.of(name, t) for name, t in call.tangents().items())
            check_pointers(given, self._alignment)
        arguments, results = self._forward.prepare(of_call, sized, with_results=with_results)
        found, moved = None, (0, 0)
        if with_results:
            o, lse = results
            found = WithTangent(o, lse, _empty_like(o), _empty_like(lse))
            moved = found.o_tangent.data_ptr(), found.lse_tangent.data_ptr()
        pack_tangents(arguments, FIRST_TANGENT, *pointers, *moved)
        return arguments, found

    def fill_idle(self, call: TangentCall, result: WithTangent) -> None:
        self._forward.fill_idle(call.call, result[:2])
        for tangent in result[2:]:
            tangent.zero_()

    def inputs(self, call: TangentCall) -> dict[str, Tensor]:
        return self._forward.inputs(call.call) | call.tangents()

    def outputs(self, problem: Problem) -> dict[str, TensorView]:
        found = self._forward.outputs(problem)
        moved = {f"{name}_tangent": view for name, view in found.items()}
        return found | {name: replace(view, name=name) for name, view in moved.items()}

    def result(self, written: Mapping[str, Tensor]) -> WithTangent:
        return WithTangent(**written)
