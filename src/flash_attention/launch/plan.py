# SPDX-License-Identifier: Apache-2.0
"""Plan: everything that follows from a call's key and a config, computed once, for both passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, overload

from torch.autograd import profiler

from flash_attention.arch import MEASURED_ARCH, Arch
from flash_attention.call.any_call import AnyCall, check_any_call, forward_of
from flash_attention.call.backward_call import BackwardCall, BackwardProblem, Gradients
from flash_attention.call.call import Call
from flash_attention.call.lengths import check_lengths
from flash_attention.call.options import check_switch
from flash_attention.call.problem import Problem, resized_view
from flash_attention.call.tangent_call import TangentCall, WithTangent
from flash_attention.call.tensors import TensorView
from flash_attention.choose.rules import choose
from flash_attention.families.given import GivenConfig
from flash_attention.families.recipe import Recipe, Setting
from flash_attention.families.registry import family_of
from flash_attention.kernel_configs import config_for
from flash_attention.launch.device import CPU, device_arch, num_sms_of
from flash_attention.launch.launcher import Launcher
from flash_attention.launch.preparation import (
    BackwardPreparation,
    ForwardPreparation,
    Outputs,
    Preparation,
)
from flash_attention.launch.tangent import TangentPreparation
from flash_attention.reference.formula import check_reads

PREPARATIONS: dict[type, Any] = {
    Call: ForwardPreparation,
    BackwardCall: BackwardPreparation,
    TangentCall: TangentPreparation,
}


class Plan:
    """How to run all calls with one key, on a CUDA device or in the emulator."""

    def __init__(
        self,
        call: AnyCall,
        config: GivenConfig | None = None,
        arch: Arch | None = None,
        mixed: bool | None = None,
    ) -> None:
        """Check the call, and choose a config if none is given. `arch` defaults to that of the
        tensors' device. `mixed` says whether sequences with few queries have a kernel of their own,
        if one is to measure that. Nothing is compiled."""
        self.problem: Problem | BackwardProblem
        self._views: Sequence[TensorView]
        self._recipe: Recipe | None
        self.problem, self._views = check_any_call(call)
        self.device_index: int = forward_of(call).q.get_device()
        split_keys, return_lse = None, False
        if isinstance(call, Call):
            split_keys, return_lse = call.split_keys, bool(call.return_lse)
        if arch is None and self.device_index != CPU:
            arch = device_arch(self.device_index)
        given = None if config is None else config_for(config, self.problem, self._views)
        if arch is None:
            arch = MEASURED_ARCH if given is None else given.default_arch
        setting = Setting(arch, num_sms_of(self.device_index), return_lse, device=self.device_index)
        self.choice = choose(
            self.problem,
            setting,
            self._views,
            config=given,
            split_keys=split_keys,
            may_tune=True,
            mixed=mixed,
        )
        self.config = self.choice.config
        self._recipe = recipe = self.choice.recipe(self.problem, self._views)
        self.idle = self.problem.idle
        self.model = self  # that this plan follows from
        self.is_differentiable = False  # until that was checked, of a model
        self.partners: dict[tuple[object, ...], Any] = {}
        """The plans of this call's backward passes, as `launch/partners.py` finds them."""
        self.models: dict[tuple[object, ...], tuple[Callable[..., bool], Plan]] = {}
        """How tensors of these passes are compared, and what their plans follow from, whatever the
        lengths."""
        has_kin = _has_strides_of_all_lengths(call) and not self.problem.block_descales
        self._resize = recipe.resize if has_kin else None
        self.launcher = Launcher(recipe, self.device_index, self.problem)
        self.sized = self.launcher.own
        self.preparation: Preparation[Any, Any] = PREPARATIONS[type(call)](
            call,
            self.problem,
            self._views,
            recipe,
            self.launcher,
            family_of(self.config).alignment,
        )

    @property
    def views(self) -> Sequence[TensorView]:
        """Views with a batch dimension of the tensors that a recipe is made for."""
        return [resized_view(view, self.problem) for view in self._views]

    @property
    def recipe(self) -> Recipe:
        """How the family of the config runs the problem."""
        if self._recipe is None:
            self._recipe = self.choice.recipe(self.problem, self.views)
        return self._recipe

    @property
    def launches(self) -> bool:
        """Whether kernels of a GPU run the calls."""
        return self.device_index != CPU and not self.idle

    @property
    def is_resizable(self) -> bool:
        """Whether there may be plans for other lengths that follow from this one."""
        return self._resize is not None

    def resized(self, call: AnyCall) -> Plan | None:
        """Return the plan of a call that differs in lengths alone, as `Call.kind_and_tensors` says.
        It is None if the call has to be checked and planned from the start: its lengths do not fit
        together, there is nothing to compute, or they are better served by other kernels."""
        problem = self.resized_problem(call)
        return None if problem is None else self.sized_for(problem)

    def resized_problem(self, call: AnyCall) -> Problem | None:
        """Return the problem of a call that differs in lengths alone, unless it has to be checked
        from the start."""
        problem = self.problem.resized(forward_of(call))
        if problem is None or not isinstance(call, BackwardCall):
            return problem
        return problem if call.has_rows_of(problem) else None

    def sized_for(self, problem: Problem) -> Plan | None:
        """Return the plan of a problem that differs in lengths alone, unless other kernels serve it
        better."""
        resized = None if self._resize is None else self._resize(problem)
        if resized is None:
            return None
        made = object.__new__(Plan)
        made.__dict__ = vars(self).copy()
        made.problem, made._recipe, made.partners = problem, None, {}
        made.sized = self.launcher.sized(resized, problem)
        return made

    @overload
    def run(self, call: Call, validate: bool = False) -> Outputs: ...

    @overload
    def run(self, call: BackwardCall) -> Gradients: ...

    @overload
    def run(self, call: TangentCall) -> WithTangent: ...

    def run(self, call: AnyCall, validate: bool = False) -> Any:
        """Run a call with the plan's key. torch's profiler shows it as a range called
        flash_attention::<config>. `validate` checks lengths first, as `attention` describes."""
        if validate is not False:
            check_switch("validate", validate)
            if validate and isinstance(call, Call):
                self._validate(call)
        if self.device_index == CPU or self.idle or profiler._is_profiler_enabled:
            return self._run_uncommon(call)
        preparation, sized = self.preparation, self.sized
        arguments, result = preparation.prepare(call, sized)
        self.launcher.launch(arguments, sized)
        preparation.spare.append(arguments)
        return result

    def _validate(self, call: Call) -> None:
        check_lengths(self.problem, call)
        check_reads(call)

    def _run_uncommon(self, call: AnyCall) -> Any:
        """Run a call that is emulated or profiled, or that needs no kernel."""
        name = f"flash_attention::{self.config.short_form()}"
        with profiler.record_function(name) if profiler._is_profiler_enabled else nullcontext():
            if self.device_index == CPU and not self.idle:
                from flash_attention.launch.emulation import emulate_checked  # loaded when used

                return emulate_checked(self, call)
            arguments, result = self.preparation.prepare(call, self.sized)
            self.launch(call, arguments, result)
            return result

    def launch(self, call: AnyCall, arguments: Any, result: Any) -> None:
        """Queue the kernels of a prepared call, or fill its result if it needs none."""
        if self.idle:
            self.preparation.fill_idle(call, result)
        else:
            self.launcher.launch(arguments, self.sized)

    def check(self, call: Call, validate: bool) -> None:
        """Raise what `run` raises for a call with the plan's key before it computes anything."""
        check_switch("validate", validate)
        if validate:
            self._validate(call)
        self.preparation.spare.append(self.bind(call))

    @overload
    def prepare(self, call: Call) -> tuple[Any, Outputs]: ...

    @overload
    def prepare(
        self, call: BackwardCall, into: Gradients | None = None
    ) -> tuple[Any, Gradients]: ...

    @overload
    def prepare(self, call: TangentCall) -> tuple[Any, WithTangent]: ...

    def prepare(self, call: AnyCall, into: Gradients | None = None) -> tuple[Any, Any]:
        """Check the call's tensors, compile the kernels if needed, and allocate the results, unless
        there are gradients to store `into`. Returns the kernel arguments and the result."""
        if into is None:
            return self.preparation.prepare(call, self.sized)
        assert isinstance(self.preparation, BackwardPreparation)
        assert isinstance(call, BackwardCall)
        return self.preparation.prepare(call, self.sized, into=into)

    def bind(self, call: AnyCall) -> Any:
        """Check what may differ between calls of one key, and return the kernel arguments. The
        addresses of results that are not allocated yet are zero."""
        return self.preparation.prepare(call, self.sized, with_results=False)[0]


def _has_strides_of_all_lengths(call: AnyCall) -> bool:
    """Whether the tensors of a call can be read, and results be allocated, with the same strides
    whatever the lengths. Nothing is known of the strides of dimensions with a single element,
    unless they are those of a contiguous tensor. The rows of an output do not overlap."""
    of = forward_of(call)
    given = [call.do] if isinstance(call, BackwardCall) else []
    given += [tensor for tensor in of[:4] if tensor is not None]
    for tensor in given:
        inner = tensor.shape[1:].numel()
        if tensor.shape[0] < 2 and not (tensor.is_contiguous() and tensor.stride(0) == inner):
            return False
    lengths = (of.cu_seqlens_q, of.cu_seqlens_k, of.seqused_k, of.block_table)
    if any(tensor is not None and tensor.stride(-1) != 1 for tensor in lengths):
        return False
    if of.out is None:
        return True
    row = zip(of.out.shape[1:], of.out.stride()[1:], strict=True)
    return of.out.stride(0) > sum((size - 1) * stride for size, stride in row)
