# SPDX-License-Identifier: Apache-2.0
"""Backward passes: plans, and where they run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flash_attention.arch import Arch
from flash_attention.call import tensors
from flash_attention.call.backward_call import BackwardCall, BackwardProblem, Gradients
from flash_attention.call.backward_checks import check_backward_call
from flash_attention.call.call import Call
from flash_attention.call.results import new_gradient
from flash_attention.call.strict import strict_arch
from flash_attention.call.tensors import ALIGNMENT, TensorView
from flash_attention.choose.decision import Decision, Where, decide
from flash_attention.families.backward_args import (
    FIRST_ADDRESS,
    BackwardKernelArgs,
    pack_addresses,
)
from flash_attention.families.given import GivenConfig, read_config
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import Setting, workspace_bytes
from flash_attention.families.registry import check_pass, family_of
from flash_attention.kernel_configs import as_kernel_config, config_for
from flash_attention.launch.device import CPU, device_arch, num_sms_of
from flash_attention.launch.launcher import Launcher
from flash_attention.launch.plan import may_change
from flash_attention.launch.plans import Plans


class BackwardPlan:
    """How to run all backward passes with one key, on a CUDA device or in the emulator."""

    def __init__(
        self, call: BackwardCall, config: GivenConfig | None = None, arch: Arch | None = None
    ) -> None:
        """Check the call, and choose a config if none is given. `arch` defaults to that of the
        tensors' device. Nothing is compiled."""
        self.problem: BackwardProblem
        self.problem, self.views = check_backward_call(call)
        self.device_index: int = call.do.get_device()
        if arch is None and self.device_index != CPU:
            arch = device_arch(self.device_index)
        where = Where(num_sms_of(self.device_index), arch, self.device_index)
        decision = decide_backward(self.problem, config, where, may_tune=True)
        self.config, self.arch = decision.config, decision.arch
        setting = Setting(self.arch, where.num_sms)
        self.recipe = family_of(self.config).recipe(self.config, self.problem, self.views, setting)
        self.idle = self.problem.idle
        self.launcher = Launcher(self.recipe, self.device_index)
        self._template = bytes(self.recipe.arguments)
        self._spare: list[BackwardKernelArgs] = []  # of passes that were launched
        self._given = tuple(call.call.extras())
        self._rooms = self._rooms_of_gradients()

    def run(self, call: BackwardCall) -> Gradients:
        """Run a backward pass with the plan's key."""
        if self.idle:
            return self._zeros(call)
        if self.device_index == CPU:
            from flash_attention.launch.backward_emulation import (  # loaded when used
                emulate_checked,
            )

            return emulate_checked(self, call)
        arguments, gradients = self.prepare(call)
        self.launcher.launch(arguments)
        self._spare.append(arguments)
        return gradients

    def prepare(
        self, call: BackwardCall, into: Gradients | None = None
    ) -> tuple[BackwardKernelArgs, Gradients]:
        """Check the call's tensors, compile the kernels if needed, and allocate the gradients,
        unless there are some to store `into`."""
        pointers = self._checked_pointers(call)
        if not self.launcher.loaded:
            self.launcher.load()
        gradients = self._new_gradients(call.call) if into is None else into
        return self._pack(call, pointers, gradients), gradients

    def bind(self, call: BackwardCall) -> BackwardKernelArgs:
        """Check what may differ between calls of one key, and return the kernel arguments without
        the addresses of gradients."""
        return self._pack(call, self._checked_pointers(call), Gradients())

    def _new_gradients(self, call: Call) -> Gradients:
        """Allocate the wanted gradients."""
        dq, dk, dv = self._rooms
        q, k, v, _, sinks = call[:5]
        dsinks = None
        if sinks is not None and self.problem.wanted.dsinks:
            dsinks = torch.empty_like(sinks)
        return Gradients(dq and dq(q), dk and dk(k), dv and dv(v), dsinks)

    def _checked_pointers(self, call: BackwardCall) -> tuple[int, ...]:
        """Return the addresses of q, k, v, o and do."""
        do, (q, k, v, o, *_) = call[:2]
        o_pointer = 0 if o is None else o.data_ptr()
        pointers = (q.data_ptr(), k.data_ptr(), v.data_ptr(), o_pointer, do.data_ptr())
        a, b, c, d, e = pointers
        if (a | b | c | d | e) % ALIGNMENT:
            named = zip(("do", "q", "k", "v", "o"), (do, q, k, v, o), strict=True)
            tensors.check_pointers(TensorView.of(name, t) for name, t in named if t is not None)
        if forward_ad._current_level >= 0:
            tensors.check_no_tangent(call.call, do, call.lse, call.dlse)
        return pointers

    def _pack(
        self, call: BackwardCall, pointers: tuple[int, ...], gradients: Gradients
    ) -> BackwardKernelArgs:
        try:
            arguments = self._spare.pop()
        except IndexError:  # this is the first pass, or others are running
            arguments = BackwardKernelArgs.from_buffer_copy(self._template)
        dq, dk, dv, dsinks = gradients
        pack_addresses(
            arguments,
            FIRST_ADDRESS,
            *pointers,
            0 if dq is None else dq.data_ptr(),
            0 if dk is None else dk.data_ptr(),
            0 if dv is None else dv.data_ptr(),
            call.lse.data_ptr(),
            0 if call.dlse is None else call.dlse.data_ptr(),
            0 if dsinks is None else dsinks.data_ptr(),
        )
        for name in self._given:
            setattr(arguments, name, getattr(call.call, name).data_ptr())
        return arguments

    def _rooms_of_gradients(self) -> list[Callable[[Tensor], Tensor] | None]:
        """Return functions that allocate the wanted gradients of tensors. torch.empty_like is the
        fastest, where it gives a gradient its strides."""
        rooms: list[Callable[[Tensor], Tensor] | None] = []
        both = zip(self.views[1:4], self.views[5:], strict=True)
        for (tensor, gradient), asked in zip(both, self.problem.wanted[:3], strict=True):
            new = torch.empty_like if gradient.strides == tensor.strides else new_gradient
            rooms.append(new if asked else None)
        return rooms

    def is_packed(self, view: TensorView) -> bool:
        """Whether a gradient has no batch dimension."""
        total = self.problem.total_q if view.name == "dq" else self.problem.total_k
        return total is not None

    def _zeros(self, call: BackwardCall) -> Gradients:
        """Return the gradients without a query or a key. The lse of a row is then its sink."""
        gradients = self._new_gradients(call.call)
        for gradient in gradients:
            if gradient is not None:
                gradient.zero_()
        dsinks = gradients.dsinks
        if dsinks is not None and call.dlse is not None:
            rows = call.dlse.transpose(-1, -2).flatten(end_dim=-2)
            if (starts := call.call.cu_seqlens_q) is not None:
                row = torch.arange(len(rows), device=rows.device)
                loose = (row < starts[0]) | (row >= starts[-1])
                rows = rows.masked_fill(loose[:, None], 0)
            dsinks += rows.sum(0)
        return gradients


def decide_backward(
    problem: BackwardProblem, config: GivenConfig | None, where: Where, *, may_tune: bool = False
) -> Decision:
    """Choose the config of a backward pass, unless one is given."""
    workspace_bytes()  # a wrong number is refused, whether the config has a workspace or not
    chosen = None if config is None else config_for(config, problem, Pass.BACKWARD)
    if chosen is not None:
        check_pass(chosen, Pass.BACKWARD)
    return decide(problem, where, config=chosen, may_tune=may_tune)


_plans: Plans[BackwardPlan] = Plans()


def backward_plan_for(call: BackwardCall, config: GivenConfig | None = None) -> BackwardPlan:
    """Return the plan of a backward pass. A new key is checked first. Nothing is compiled."""
    if may_change(config):
        config = read_config(config, Pass.BACKWARD)
    try:
        key = (config, call.key())
        plan = _plans.get(key)
    except Exception:
        if config is not None:
            as_kernel_config(config, pass_=Pass.BACKWARD)
        check_backward_call(call)  # raises what explains why there is no key
        raise
    if plan is None:
        plan = BackwardPlan(call, config)
        _plans.add(key, plan)
    return plan


def forget_backward_plans() -> None:
    """Forget all plans, so that kernels are chosen again."""
    _plans.clear()


def known_backward_plan(
    call: BackwardCall, config: GivenConfig | None = None
) -> BackwardPlan | None:
    """Return the plan of a backward pass as `known_plan` returns that of a call."""
    plan = recent_backward_plan(call, config)
    if plan is None:
        try:
            plan = _plans.get((config, call.key()))
            if plan is not None:
                kind, tensors = call.kind_and_tensors()
                _plans.note(plan, (config, *kind), *tensors)
        except Exception:  # of an argument that has no key, which the checks of a new plan refuse
            return None
    return None if plan is None or (plan.device_index == CPU and config is None) else plan


def recent_backward_plan(
    call: BackwardCall, config: GivenConfig | None = None
) -> BackwardPlan | None:
    """Return the plan of a backward pass if it was recently known. This runs in every pass."""
    try:
        kind, tensors = call.kind_and_tensors()
        plan = _plans.recent((config, *kind), *tensors)
    except Exception:  # of an argument that has no key, which the checks of a new plan refuse
        return None
    return None if plan is None or (plan.device_index == CPU and config is None) else plan


def compute_gradients(call: BackwardCall, config: GivenConfig | None = None) -> Gradients:
    """Run a backward pass: with torch on the CPU if there is no config, else with kernels."""
    plan = known_backward_plan(call, config)
    if plan is None:
        if config is None and call.do.is_cpu:
            return _gradients_on_cpu(call)
        plan = backward_plan_for(call, config)
    return plan.run(call)


def _gradients_on_cpu(call: BackwardCall) -> Gradients:
    if (arch := strict_arch()) is not None:
        BackwardPlan(call, arch=arch).bind(call)
    from flash_attention.reference.gradients import gradients_on_cpu  # loaded when used

    return gradients_on_cpu(call)
