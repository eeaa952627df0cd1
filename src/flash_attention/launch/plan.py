# SPDX-License-Identifier: Apache-2.0
"""Plan: everything that follows from a call's key and a config, computed once, for both passes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, overload

from torch.autograd import profiler

from flash_attention.arch import MEASURED_ARCH, Arch
from flash_attention.call.backward_call import BackwardCall, BackwardProblem, Gradients
from flash_attention.call.backward_checks import check_backward_call
from flash_attention.call.call import Call
from flash_attention.call.checks import check_call
from flash_attention.call.lengths import check_lengths
from flash_attention.call.options import check_switch
from flash_attention.call.problem import Problem
from flash_attention.choose.rules import choose
from flash_attention.families.given import GivenConfig
from flash_attention.families.recipe import Setting
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


class Plan:
    """How to run all calls with one key, on a CUDA device or in the emulator."""

    def __init__(
        self, call: Call | BackwardCall, config: GivenConfig | None = None, arch: Arch | None = None
    ) -> None:
        """Check the call, and choose a config if none is given. `arch` defaults to that of the
        tensors' device. Nothing is compiled."""
        self.problem: Problem | BackwardProblem
        split_keys, return_lse = None, False
        if isinstance(call, BackwardCall):
            self.problem, self.views = check_backward_call(call)
            self.device_index: int = call.do.get_device()
        else:
            self.problem, self.views = check_call(call)
            self.device_index = call.q.get_device()
            split_keys, return_lse = call.split_keys, bool(call.return_lse)
        if arch is None and self.device_index != CPU:
            arch = device_arch(self.device_index)
        given = None if config is None else config_for(config, self.problem, self.views)
        if arch is None:
            arch = MEASURED_ARCH if given is None else given.default_arch
        setting = Setting(arch, num_sms_of(self.device_index), return_lse, device=self.device_index)
        self.choice = choose(
            self.problem,
            setting,
            self.views,
            config=given,
            split_keys=split_keys,
            may_tune=True,
        )
        self.config = self.choice.config
        self.recipe = self.choice.recipe(self.problem, self.views)
        self.idle = self.problem.idle
        self.is_differentiable = False  # until that was checked
        self.launcher = Launcher(self.recipe, self.device_index)
        kind: Any = BackwardPreparation if isinstance(call, BackwardCall) else ForwardPreparation
        self.preparation: Preparation[Any, Any] = kind(
            call,
            self.problem,
            self.views,
            self.recipe,
            self.launcher,
            family_of(self.config).alignment,
        )

    @overload
    def run(self, call: Call, validate: bool = False) -> Outputs: ...

    @overload
    def run(self, call: BackwardCall) -> Gradients: ...

    def run(self, call: Call | BackwardCall, validate: bool = False) -> Any:
        """Run a call with the plan's key. torch's profiler shows it as a range called
        flash_attention::<config>. `validate` checks lengths first, as `attention` describes."""
        if validate is not False:
            check_switch("validate", validate)
            if validate and not isinstance(call, BackwardCall):
                check_lengths(self.problem, call)
        if self.device_index == CPU or self.idle or profiler._is_profiler_enabled:
            return self._run_uncommon(call)
        preparation = self.preparation
        arguments, result = preparation.prepare(call)
        self.launcher.launch(arguments)
        preparation.spare.append(arguments)
        return result

    def _run_uncommon(self, call: Call | BackwardCall) -> Any:
        """Run a call that is emulated or profiled, or that needs no kernel."""
        name = f"flash_attention::{self.config.short_form()}"
        with profiler.record_function(name) if profiler._is_profiler_enabled else nullcontext():
            if self.device_index == CPU and not self.idle:
                from flash_attention.launch.emulation import emulate_checked  # loaded when used

                return emulate_checked(self, call)
            arguments, result = self.preparation.prepare(call)
            self.launch(call, arguments, result)
            return result

    def launch(self, call: Call | BackwardCall, arguments: Any, result: Any) -> None:
        """Queue the kernels of a prepared call, or fill its result if it needs none."""
        if self.idle:
            self.preparation.fill_idle(call, result)
        else:
            self.launcher.launch(arguments)

    @overload
    def prepare(self, call: Call) -> tuple[Any, Outputs]: ...

    @overload
    def prepare(
        self, call: BackwardCall, into: Gradients | None = None
    ) -> tuple[Any, Gradients]: ...

    def prepare(self, call: Call | BackwardCall, into: Gradients | None = None) -> tuple[Any, Any]:
        """Check the call's tensors, compile the kernels if needed, and allocate the results, unless
        there are gradients to store `into`. Returns the kernel arguments and the result."""
        if into is None:
            return self.preparation.prepare(call)
        assert isinstance(self.preparation, BackwardPreparation)
        assert isinstance(call, BackwardCall)
        return self.preparation.prepare(call, into=into)

    def bind(self, call: Call | BackwardCall) -> Any:
        """Check what may differ between calls of one key, and return the kernel arguments. The
        addresses of results that are not allocated yet are zero."""
        return self.preparation.prepare(call, with_results=False)[0]
