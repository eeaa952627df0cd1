# SPDX-License-Identifier: Apache-2.0
"""Backward passes: plans, and where they run."""

from __future__ import annotations

import torch
from torch import Tensor

from flash_attention.arch import Arch
from flash_attention.call import tensors
from flash_attention.call.backward_call import BackwardCall, BackwardProblem, Gradients
from flash_attention.call.backward_checks import check_backward_call
from flash_attention.call.tensors import ALIGNMENT, TensorView
from flash_attention.choose.decision import Decision, Where, decide
from flash_attention.families.backward_args import BackwardKernelArgs
from flash_attention.families.given import GivenConfig, read_config
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import Setting, workspace_bytes
from flash_attention.families.registry import check_pass, family_of
from flash_attention.kernel_configs import as_kernel_config, config_for
from flash_attention.launch.device import CPU, device_arch, num_sms_of
from flash_attention.launch.launcher import Launcher
from flash_attention.launch.plan import MAX_PLANS, may_change
from flash_attention.launch.strict import strict_arch


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
        self._given = tuple(call.call.extras)

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
        return gradients

    def prepare(
        self, call: BackwardCall, into: Gradients | None = None
    ) -> tuple[BackwardKernelArgs, Gradients]:
        """Check the call's tensors, compile the kernels if needed, and allocate the gradients,
        unless there are some to store `into`."""
        arguments = self.bind(call)
        if not self.launcher.loaded:
            self.launcher.load()
        gradients = self.new_gradients() if into is None else into
        for name, tensor in gradients._asdict().items():
            if tensor is not None:
                setattr(arguments, name, tensor.data_ptr())
        return arguments, gradients

    def new_gradients(self) -> Gradients:
        """Allocate the wanted gradients."""
        wanted = self.problem.wanted
        dq, dk, dv = (
            self._new(view) if asked else None
            for view, asked in zip(self.views[5:], wanted[:3], strict=True)
        )
        return Gradients(dq, dk, dv, self._new_sinks() if wanted.dsinks else None)

    def bind(self, call: BackwardCall) -> BackwardKernelArgs:
        """Check what may differ between calls of one key, and return the kernel arguments without
        the addresses of gradients."""
        do, forward, lse, dlse = call[:4]
        q, k, v, o = forward[:4]
        arguments = BackwardKernelArgs.from_buffer_copy(self._template)
        for name, tensor in (("d_o", do), ("q", q), ("k", k), ("v", v), ("o", o)):
            pointer = tensor.data_ptr() if tensor is not None else 0
            if pointer % ALIGNMENT:
                tensors.check_pointers([TensorView.of(name.replace("_", ""), tensor)])
            setattr(arguments, name, pointer)
        arguments.lse = lse.data_ptr()
        if dlse is not None:
            arguments.dlse = dlse.data_ptr()
        for name in self._given:
            setattr(arguments, name, getattr(forward, name).data_ptr())
        return arguments

    def _new(self, view: TensorView) -> Tensor:
        tensor = torch.empty_strided(view.shape, view.strides, dtype=view.dtype, device=view.device)
        return tensor[0] if self.is_packed(view) else tensor

    def is_packed(self, view: TensorView) -> bool:
        """Whether a gradient has no batch dimension."""
        total = self.problem.total_q if view.name == "dq" else self.problem.total_k
        return total is not None

    def _new_sinks(self) -> Tensor:
        device = self.views[0].device
        return torch.empty(self.problem.heads, dtype=torch.float32, device=device)

    def _zeros(self, call: BackwardCall) -> Gradients:
        """Return the gradients without a query or a key. The lse of a row is then its sink."""
        gradients = self.new_gradients()
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


_plans: dict[tuple[object, ...], BackwardPlan] = {}


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
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        _plans[key] = plan
    return plan


def forget_backward_plans() -> None:
    """Forget all plans, so that kernels are chosen again."""
    _plans.clear()


def compute_gradients(call: BackwardCall, config: GivenConfig | None = None) -> Gradients:
    """Run a backward pass: with torch on the CPU if there is no config, else with kernels."""
    if config is None and call.do.is_cpu:
        if (arch := strict_arch()) is not None:
            BackwardPlan(call, arch=arch).bind(call)
        from flash_attention.reference.gradients import gradients_on_cpu  # loaded when used

        return gradients_on_cpu(call)
    return backward_plan_for(call, config).run(call)
