# SPDX-License-Identifier: Apache-2.0
"""Calls of Hopper kernels whose keys are cut in a given way, emulated from edited headers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from flash_attention.arch import ARCHES
from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.choose.decision import Decision, Rule, Where
from flash_attention.errors import LaunchError
from flash_attention.families.sm90.forward.splits import Chunks
from flash_attention.kernel_configs import HopperForwardKernelConfig
from flash_attention.launch import plan as plans
from flash_attention.launch.emulation import Settings, emulate_plan
from flash_attention.launch.plan import Plan
from tests.emulator.edits import Edit, compiler
from tests.feature_cases import Case, MadeCase

DEADLOCK = "deadlock"
ARCH = ARCHES["sm_90"]


@dataclass(frozen=True)
class Scene:
    """A call, the config that runs it, and how its keys are cut: into chunks of `split_keys`,
    evenly for so many `ctas`, or not at all, with the `heads_together` or one by one."""

    case: Case
    config: HopperForwardKernelConfig
    split_keys: int = 0
    ctas: int = 0
    heads_together: bool = False
    max_seqlen_k: int = 0  # if it is not the length of the longest keys

    def chunks(self, problem: Problem) -> Chunks | None:
        block_keys = self.config.B_c
        if self.split_keys:
            return Chunks.of_keys(problem, block_keys, self.split_keys)
        if self.ctas:
            return Chunks.for_ctas(problem, block_keys, self.ctas, least=1)
        return Chunks.whole(problem, block_keys) if self.heads_together else None

    def call(self, made: MadeCase) -> Call:
        call = made.call(return_lse=True)
        return call._replace(max_seqlen_k=self.max_seqlen_k) if self.max_seqlen_k else call

    def plan(self, call: Call) -> Plan:
        """The plan of the call, its keys cut as the scene says."""

        def decide(problem: Problem, where: Where, **asked: Any) -> Decision:
            return Decision(self.config, ARCH, self.chunks(problem), Rule.GIVEN)

        with patch.object(plans, "decide", decide):
            return Plan(call, self.config)


@dataclass(frozen=True)
class Catch:
    """What a run of mutated kernels gave away."""

    kinds: frozenset[str]
    output_right: bool


def attempt(scene: Scene, edits: Iterable[Edit], folder: Path, schedule: str = "lockstep") -> Catch:
    """Run a scene with kernels from headers of which `folder` holds an edited copy."""
    made = scene.case.make()
    call = scene.call(made)
    compile_unit = compiler(edits, folder)
    try:
        result = emulate_plan(scene.plan(call), call, Settings(schedule), compile_unit=compile_unit)
    except LaunchError:
        return Catch(frozenset({DEADLOCK}), output_right=False)
    kinds = frozenset(finding.kind for finding in result.findings)
    try:
        made.assert_right(result.output.nan_to_num(nan=torch.inf), result.lse)
    except AssertionError:
        return Catch(kinds, output_right=False)
    return Catch(kinds, output_right=True)
