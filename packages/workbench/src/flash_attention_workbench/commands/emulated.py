# SPDX-License-Identifier: Apache-2.0
"""A kernel emulated on generated inputs and held to the oracle: the numbers commands print."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from flash_attention.arch import Arch, get_arch
from flash_attention.call.backward_call import BackwardCall
from flash_attention.call.call import call_of
from flash_attention.call.results import unit_descales
from flash_attention.call.tangent_call import TangentCall
from flash_attention.compile import CompiledKernel
from flash_attention.compile.unit import Unit
from flash_attention.errors import UnsupportedError
from flash_attention.families.passes import Pass
from flash_attention.families.registry import family_of
from flash_attention.kernel_configs import KernelConfig
from flash_attention.launch.emulation import (
    Settings,
    emulate_any_plan,
    emulate_backward_plan,
    emulate_plan,
)
from flash_attention.launch.plan import Plan
from flash_attention.reference.cpu import attention_on_cpu
from flash_attention.reference.gradient_judge import GradientJudge
from flash_attention.reference.judge import Check, Judge, generate_qkvo
from flash_attention.reference.tangent_judge import TangentJudge, random_tangents
from flash_attention_workbench.bench.ladder_run import nearest_to_limit
from flash_attention_workbench.gradient_check import random_gradients_of
from ptx_emulator import Counters, Finding

EMULATED = 1 << 26  # scores, which take about a minute
SMALL = "--batch 1 --seq 256 --heads 2"


def check_size(scores: int, elements: int, smaller: str) -> None:
    """Refuse what would keep the emulator busy for minutes, or not fit in memory."""
    for count, what in ((scores, "scores"), (elements, "elements in a tensor")):
        if count > EMULATED:
            number = f"{count:,}" if count < 1 << 63 else "over 2**63"
            raise UnsupportedError(
                f"the shape has {number} {what}, and the emulator takes minutes from {EMULATED:,}"
                f" on; pass a smaller one, such as {smaller}"
            )


CompileUnit = Callable[[Unit], CompiledKernel]


class EmulatedProblem:
    """Generated tensors of one shape, and their oracle, for any number of kernels.

    `stored_heads` is how many heads the memory holds side by side; the first `heads` are used. A
    kernel whose row stride is compiled in for many heads can so be run on few.
    """

    def __init__(
        self,
        config: KernelConfig,
        *,
        batch: int,
        seq_len: int,
        heads: int,
        stored_heads: int,
        causal: bool = False,
    ) -> None:
        scores = batch * heads * seq_len**2
        check_size(scores, batch * seq_len * stored_heads * config.d_head, SMALL)
        stored = generate_qkvo(
            *(batch, seq_len, stored_heads, config.d_head, config.input_dtype),
            n_heads_k=1 if config.v_in_k else stored_heads,
            d_v=config.value_columns,
        )
        self.q, self.k, self.v, self.o = (tensor[:, :, :heads] for tensor in stored)
        if config.v_in_k:
            self.v = self.k[..., : config.value_columns]
        self.causal = causal
        self.keywords: dict[str, Any] = {"causal": causal, **unit_descales(self.q)}

    def run(
        self,
        config: KernelConfig,
        arch: str | None,
        *,
        compile_unit: CompileUnit | None = None,
        **settings: Any,
    ) -> EmulatedKernel:
        """Emulate one kernel; `settings` are those of `emulate`. A backward kernel runs between
        those before and after it, which are not counted."""
        target = None if arch is None else get_arch(arch)
        of_pass = {
            Pass.FORWARD: self._forward,
            Pass.BACKWARD: self._backward,
            Pass.TANGENT: self._tangent,
        }
        run = of_pass[family_of(config).pass_]
        return run(config, target, compile_unit, Settings(**settings))

    def _forward(
        self,
        config: KernelConfig,
        arch: Arch | None,
        compile_unit: CompileUnit | None,
        settings: Settings,
    ) -> EmulatedKernel:
        call = call_of("emulate", self.q, self.k, self.v, self.o, self.keywords)
        plan = Plan(call, config, arch)
        emulation = emulate_plan(plan, call, settings, compile_unit=compile_unit)
        return EmulatedKernel(
            config,
            tuple(self.q.shape),
            self.causal,
            "output",
            self.judge.check(emulation.output),
            emulation.findings,
            emulation.counters,
            emulation.seconds,
        )

    def _backward(
        self,
        config: KernelConfig,
        arch: Arch | None,
        compile_unit: CompileUnit | None,
        settings: Settings,
    ) -> EmulatedKernel:
        plan = Plan(self.backward_call, config, arch)
        emulation = emulate_backward_plan(
            plan, self.backward_call, settings, compile_unit=compile_unit
        )
        name = config.kernel_name()
        names = [step.unit.name for step in plan.recipe.steps]
        counters = zip(names, emulation.counters, strict=True)
        judged, check = nearest_to_limit(self.gradient_judge.check(emulation.gradients))
        return EmulatedKernel(
            config,
            tuple(self.q.shape),
            self.causal,
            judged,
            check,
            emulation.findings,
            next(counted for of, counted in counters if of.startswith(name)),
            emulation.seconds,
        )

    def _tangent(
        self,
        config: KernelConfig,
        arch: Arch | None,
        compile_unit: CompileUnit | None,
        settings: Settings,
    ) -> EmulatedKernel:
        call = self.tangent_call
        ran = emulate_any_plan(Plan(call, config, arch), call, settings, compile_unit)
        judged, check = nearest_to_limit(TangentJudge(call).check(ran.result))
        return EmulatedKernel(
            config,
            tuple(self.q.shape),
            self.causal,
            judged,
            check,
            ran.findings,
            ran.counters[0],
            ran.seconds,
        )

    @cached_property
    def judge(self) -> Judge:
        return Judge(self.q, self.k, self.v, **self.keywords)

    @cached_property
    def tangent_call(self) -> TangentCall:
        """The same tensors with random tangents."""
        call = call_of("emulate", self.q, self.k, self.v, None, {"causal": self.causal})
        return TangentCall(call, *random_tangents(*call[:3]))

    @cached_property
    def backward_call(self) -> BackwardCall:
        """The gradients of the same tensors, for a random gradient of the output."""
        options = {"causal": self.causal, "return_lse": True}
        out, lse, _ = attention_on_cpu(call_of("emulate", self.q, self.k, self.v, None, options))
        assert lse is not None  # it is asked for
        call = call_of("emulate", self.q, self.k, self.v, out, {"causal": self.causal})
        do, _ = random_gradients_of(out, None)
        return BackwardCall(do, call, lse)

    @cached_property
    def gradient_judge(self) -> GradientJudge:
        return GradientJudge(self.backward_call.call, self.backward_call.do)


def key_blocks(config: KernelConfig, seq_len: int, causal: bool) -> int:
    """Key blocks that the tiles of one head see, all tiles together."""
    ends = (min(first + config.B_r, seq_len) for first in range(0, seq_len, config.B_r))
    return sum(-(-(end if causal else seq_len) // config.B_c) for end in ends)


@dataclass(frozen=True)
class EmulatedKernel:
    """What one emulated kernel did, in the units of the reports."""

    config: KernelConfig
    shape: tuple[int, ...]  # (batch, seq, heads, d_head)
    causal: bool
    judged: str  # "output", or the gradient or tangent nearest to its limit
    check: Check
    findings: tuple[Finding, ...]
    counters: Counters
    seconds: float  # of the emulation, without compiling and loading

    @property
    def ok(self) -> bool:
        """Right numbers and nothing found."""
        return self.check.ok and not self.findings

    @property
    def warp_instructions(self) -> int:
        return self.counters.instructions.total()

    @property
    def instructions_per_key_block(self) -> float:
        """Warp instructions of a tile for each key block; what runs once a tile is shared out."""
        batch, seq_len, heads, _ = self.shape
        blocks = batch * heads * key_blocks(self.config, seq_len, self.causal)
        return self.warp_instructions / blocks

    @property
    def conflict_ways(self) -> float:
        """Wavefronts of shared memory for each one needed; 1 is free of conflicts."""
        sites = self.counters.shared_sites.values()
        return sum(s.wavefronts for s in sites) / max(1, sum(s.ideal for s in sites))

    @property
    def sectors_per_request(self) -> float:
        """32-byte sectors of global memory a warp's request touches."""
        sites = self.counters.global_sites.values()
        return sum(s.sectors for s in sites) / max(1, sum(s.requests for s in sites))

    def to_dict(self) -> dict[str, Any]:
        return {
            "config": self.config.short_form(),
            "shape": self.shape,
            "causal": self.causal,
            "ok": self.ok,
            "check": {**asdict(self.check), "ok": self.check.ok},
            "seconds": self.seconds,
            "findings": [finding.to_dict() for finding in self.findings],
            "counters": self.counters.to_dict(),
        }
