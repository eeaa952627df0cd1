# SPDX-License-Identifier: Apache-2.0
"""Both passes of kernels with a user's function, in the emulator or on a GPU, against float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import Function
from flash_attention.arch import DEFAULT_ARCH
from flash_attention.call.backward_call import Gradients
from flash_attention.call.problem import Problem
from flash_attention.families.sm80.backward.heuristic import heuristic as backward_heuristic
from flash_attention.families.sm80.forward.heuristic import heuristic as forward_heuristic
from flash_attention.launch.compute import compute_gradients
from flash_attention.launch.emulation import Settings, emulate_backward_plan
from flash_attention.launch.plan import Plan
from flash_attention.reference.judge import Judge, check_lse
from tests.devices import on_devices, ran
from tests.families.sm90.backward.cases import Case
from tests.gate import EXHAUSTIVE
from tests.program.grammar import Sizes, random_function

# Small blocks, which are compiled quickly.
FORWARD = "hopper(BF16, {}, 1, 32, 2): tma+specialised+dynamic_4"
BACKWARD = "hopper_backward(BF16, {}, 64, 128, 1): dq_own_warpgroup+ds_1+exact+serial+grouped_8"
Make = Callable[[str], Function]
"""A function whose captured tensors are on a device."""


@dataclass(frozen=True)
class Run:
    """A call with a function, its configs, and what a device computes for it."""

    make: Make
    device: str = "cpu"
    problem: dict[str, Any] = field(default_factory=dict)  # as `Case` takes it
    forward: str | None = FORWARD.format(64)
    backward: str | None = BACKWARD.format(64)
    settings: Settings = field(default_factory=Settings)

    def case(self) -> Case:
        """The tensors of the call, its results, and the judge of its gradients."""
        sizes: dict[str, Any] = {"q_lengths": 100, "k_lengths": 140, "d": (64, 64)} | self.problem
        placed: dict[str, Any] = {
            name: value.to(self.device) if isinstance(value, Tensor) else value
            for name, value in sizes.items()
        }
        return Case(**placed, function=self.make(self.device), device=self.device)

    def check_forward(self) -> tuple[Tensor, Tensor]:
        """Assert that the output and the lse are right. Returns them."""
        call = self.case().call.call._replace(out=None, return_lse=True)
        if call.cu_seqlens_q is not None:
            call = call._replace(q=call.q[: int(call.cu_seqlens_q[-1])])
        output, lse = ran(Plan(call, self.forward), call, self.settings)
        assert lse is not None
        check = Judge(*call[:3], **call.keywords()).check(output)
        assert check.ok, check
        of_lse = check_lse(lse, *call[:2], **call.keywords())
        assert of_lse.ok, of_lse
        return output, lse

    def check_backward(self) -> Gradients:
        """Assert that the gradients are right. Returns them."""
        case = self.case()
        if self.device == "cuda":
            gradients = compute_gradients(case.call, self.backward)
        else:
            found = emulate_backward_plan(Plan(case.call, self.backward), case.call, self.settings)
            assert list(map(str, found.findings)) == []
            gradients = found.gradients
        case.check(gradients)
        return gradients

    def check(self) -> None:
        """Assert that both passes are right."""
        self.check_forward()
        self.check_backward()


def kernels(family: str, d: int = 64) -> tuple[str, str]:
    """The configs of both passes with kernels of a family: small ones of sm_90, and of sm_80 those
    that `attention` chooses, whose warps have 16 rows or 32."""
    if family == "sm_90":
        return FORWARD.format(d), BACKWARD.format(d)
    problem = Problem(1, 128, 128, 1, 1, d, d, torch.bfloat16, 1.0)
    chosen = forward_heuristic(problem, DEFAULT_ARCH), backward_heuristic(problem, DEFAULT_ARCH)
    forward, backward = (config.short_form() for config in chosen if not isinstance(config, str))
    return forward, backward


def in_families(cases: Iterable[Any], always: Iterable[Any] = ()) -> list[Any]:
    """The parameters of a test of cases, a family and a device. Those of sm_80 that are not tried
    `always` are left to a GPU and to `make exhaustive`."""
    cases, always = list(cases), list(always)
    older = [
        pytest.param(case, "sm_80", id=f"{case}-sm_80", marks=() if case in always else EXHAUSTIVE)
        for case in cases
    ]
    newer = [(case, "sm_90") for case in cases]
    return [*on_devices(newer), *on_devices(older, mark=pytest.mark.gpu)]


def random_functions(seed: int, sizes: Sizes, count: int = 1) -> Make:
    """A random function, or several, of which every head has one."""
    drawn = [random_function(each, sizes, torch.float32) for each in range(seed, seed + count)]

    def score(value: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        at = (batch, head, query, key)
        changed = [change(value, *at) for change, _, _ in drawn]
        found = changed[0]
        for number, each in enumerate(changed[1:], 1):
            found = torch.where(head == number, each, found)
        return found

    def mask(batch: Any, head: Any, query: Any, key: Any) -> Any:
        at = (batch, head, query, key)
        found = drawn[0][1](*at)
        for number, (_, see, _) in enumerate(drawn[1:], 1):
            found = torch.where(head == number, see(*at), found)
        return found

    def make(device: str) -> Function:
        for _, _, captured in drawn:
            for tensor in captured:
                tensor.data = tensor.data.to(device)
        return Function(score, mask)

    return make
