# SPDX-License-Identifier: Apache-2.0
"""Plans: everything that follows from a call's key and a config, computed once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad, profiler
from torch.autograd.graph import increment_version

from flash_attention.arch import Arch
from flash_attention.call import tensors
from flash_attention.call.call import Call
from flash_attention.call.checks import check_call, explain_bad_key, views_of
from flash_attention.call.lengths import check_lengths
from flash_attention.call.mla import check_v_in_k
from flash_attention.call.options import check_switch
from flash_attention.call.overlap import may_overlap
from flash_attention.call.results import fill_keyless, new_output
from flash_attention.call.tensors import ALIGNMENT
from flash_attention.choose.decision import Where, decide
from flash_attention.families.config import is_config
from flash_attention.families.forward_args import FIRST_ADDRESS, ForwardKernelArgs, pack_addresses
from flash_attention.families.given import GivenConfig, read_config
from flash_attention.families.passes import Pass
from flash_attention.families.registry import check_pass
from flash_attention.kernel_configs import as_kernel_config, config_for
from flash_attention.launch.device import CPU, device_arch, num_sms_of
from flash_attention.launch.launcher import Launcher
from flash_attention.launch.plans import Plans

if TYPE_CHECKING:
    from flash_attention.call.problem import Problem

_is_grad_enabled = torch.is_grad_enabled
_empty_like = torch.empty_like


class Plan:
    """How to run all calls with one key, on a CUDA device or in the emulator."""

    def __init__(
        self, call: Call, config: GivenConfig | None = None, arch: Arch | None = None
    ) -> None:
        """Check the call, and choose a config if none is given. `arch` defaults to that of the
        tensors' device. Nothing is compiled."""
        self.problem: Problem
        self.problem, self.views = check_call(call)
        self.device_index: int = call.q.get_device()
        if arch is None and self.device_index != CPU:
            arch = device_arch(self.device_index)
        chosen = None if config is None else config_for(config, self.problem)
        if chosen is not None:
            check_pass(chosen, Pass.FORWARD)
        where = Where(num_sms_of(self.device_index), arch, self.device_index)
        decision = decide(
            self.problem, where, config=chosen, split_keys=call.split_keys, may_tune=True
        )
        self.config, self.arch, self.rule = decision.config, decision.arch, decision.rule
        self.return_lse = call.return_lse
        self.is_differentiable = False  # until that was checked
        self._new_lse = self._room_of_lse(call.q.device)
        self.recipe = decision.recipe(
            self.problem, self.views, where.num_sms, return_lse=call.return_lse
        )
        self.idle = self.problem.idle
        self.given = tuple(call.extras())
        self.launcher = Launcher(self.recipe, self.device_index)
        self._like_q = self.problem.d_v == self.problem.d_head and call.q.dtype in tensors.DTYPES
        self._v_in_k = self.recipe.v_in_k and not self.idle
        self._arguments = cast(type[ForwardKernelArgs], type(self.recipe.arguments))
        self._template = bytes(self.recipe.arguments)
        self._spare: list[ForwardKernelArgs] = []  # of calls that were launched
        self._spans = tuple(view.layout.span for view in self.views)

    def run(self, call: Call, validate: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Run a call with the plan's key. torch's profiler shows it as a range called
        flash_attention::<config>. `validate` checks lengths first, as `attention` describes."""
        if validate is not False:
            check_switch("validate", validate)
            if validate:
                check_lengths(self.problem, call)
        if self.device_index == CPU or self.idle or profiler._is_profiler_enabled:
            out, lse = self._run_aside(call)
        else:
            arguments, out, lse = self.prepare(call)
            self.launcher.launch(arguments)
            self._spare.append(arguments)
        return out if lse is None else (out, lse)

    def _run_aside(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """Run a call that is emulated or profiled, or that needs no kernel."""
        name = f"flash_attention::{self.config.short_form()}"
        with profiler.record_function(name) if profiler._is_profiler_enabled else nullcontext():
            if self.device_index == CPU and not self.idle:
                from flash_attention.launch.emulation import emulate_checked  # loaded when used

                return emulate_checked(self, call)
            arguments, out, lse = self.prepare(call)
            if self.idle:
                fill_idle(out, lse, call.sinks)
            else:
                self.launcher.launch(arguments)
            return out, lse

    def bind(self, call: Call) -> ForwardKernelArgs:
        """Check what may differ between calls of one key, and return the kernel arguments.

        The address of an output that is not allocated yet is zero.
        """
        return self.prepare(call, with_results=False)[0]

    def prepare(
        self, call: Call, *, with_results: bool = True
    ) -> tuple[ForwardKernelArgs, Any, Tensor | None]:
        """Check the call's tensors, compile the kernel if needed, and allocate the results."""
        q, k, v, out = call[:4]
        q_pointer, k_pointer, v_pointer = q.data_ptr(), k.data_ptr(), v.data_ptr()
        o_pointer = 0 if out is None else out.data_ptr()
        if (q_pointer | k_pointer | v_pointer | o_pointer) % ALIGNMENT:
            tensors.check_pointers(views_of(call))
        if out is not None:
            self._check_overlap(call, o_pointer, (q_pointer, k_pointer, v_pointer))
        if k_pointer != v_pointer and self._v_in_k:
            check_v_in_k(*views_of(call)[1:3])
        if _is_grad_enabled() or forward_ad._current_level >= 0:
            tensors.check_no_grad(call)
        lse, lse_pointer = None, 0
        if with_results:
            if not (self.launcher.loaded or self.idle):
                self.launcher.load()
            if out is None:
                out = _empty_like(q) if self._like_q else new_output(q, self.problem.d_v)
                o_pointer = out.data_ptr()
            elif not out.is_inference():
                increment_version(out)
            if self.return_lse:
                lse = self._new_lse()
                lse_pointer = lse.data_ptr()
        try:
            arguments = self._spare.pop()
        except IndexError:  # this is the first call, or others are running
            arguments = self._arguments.from_buffer_copy(self._template)
        pack_addresses(
            arguments, FIRST_ADDRESS, q_pointer, k_pointer, v_pointer, o_pointer, lse_pointer
        )
        for name in self.given:
            setattr(arguments, name, getattr(call, name).data_ptr())
        return arguments, out, lse

    def _room_of_lse(self, device: torch.device) -> Callable[[], Tensor]:
        """Return a function that allocates the log-sum-exp. torch.empty would have to find out
        which of its signatures is meant."""
        shape = self.problem.lse_shape
        strides = torch.empty(shape, device="meta").stride()
        return partial(torch.empty_strided, shape, strides, dtype=torch.float32, device=device)

    def _check_overlap(self, call: Call, o_pointer: int, pointers: tuple[int, ...]) -> None:
        o_span = self._spans[3]
        for pointer, span, view in zip(pointers, self._spans, self.views, strict=False):
            apart = o_pointer + o_span <= pointer or pointer + span <= o_pointer
            if not apart and may_overlap(o_pointer - pointer, view.layout, self.views[3].layout):
                *inputs, o = views_of(call)
                tensors.check_no_overlap(o, inputs)


def fill_idle(out: Tensor, lse: Tensor | None, sinks: Tensor | None) -> None:
    """Fill the results if there is no query or no key, without a launch."""
    with torch.inference_mode(out.is_inference()):
        out.zero_()
    if lse is not None:
        fill_keyless(lse, sinks)


_plans: Plans[Plan] = Plans()


def plan_for(call: Call, config: GivenConfig | None = None) -> Plan:
    """Return the plan of a call. A new key is checked first. Nothing is compiled."""
    try:
        key = (config, call.key())
        plan = _plans.get(key)
    except Exception as error:
        if may_change(config):
            return plan_for(call, read_config(config))
        _explain(error, call, config)
    if plan is None:
        if may_change(config):
            return plan_for(call, read_config(config))
        plan = Plan(call, config)
        _plans.add(key, plan)
    return plan


def known_plan(
    call: Call, config: GivenConfig | None = None, *, with_lse: bool = False
) -> Plan | None:
    """Return the plan of a call if one with its key was planned before. A call on the CPU without
    a config has none. The plan `with_lse` returns the log-sum-exp even if the call does not ask for
    it. This runs in every call."""
    q, k, v = call[:3]
    try:
        kind = (config, q.numel(), k.numel(), call.key_beside_qkv(), with_lse)
        plan = _plans.recent(kind, q, k, v)
        if plan is None:
            planned = call.with_lse() if with_lse else call
            plan = _plans.get((config, planned.key()))
            if plan is not None:
                _plans.note(plan, kind, q, k, v)
    except Exception:  # of an argument that has no key, which the checks of a new plan refuse
        return None
    return None if plan is None or (plan.device_index == CPU and config is None) else plan


def may_change(config: object) -> bool:
    """Whether a config is an object of another class, which may change and cannot be a key."""
    return not (config is None or isinstance(config, str) or is_config(config))


def forget_plans() -> None:
    """Forget all plans, so that kernels are chosen again."""
    _plans.clear()


def _explain(error: Exception, call: Call, config: GivenConfig | None) -> NoReturn:
    """Raise the error that explains which argument has no key, else `error`."""
    if config is not None:
        as_kernel_config(config)
    explain_bad_key(call)
    raise error
