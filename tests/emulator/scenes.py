# SPDX-License-Identifier: Apache-2.0
"""Calls of Hopper kernels whose keys are cut in a given way, emulated from edited headers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from flash_attention.arch import ARCHES
from flash_attention.call.call import Extras, Options
from flash_attention.call.features import PLAIN
from flash_attention.call.problem import Problem
from flash_attention.choose.decision import check_call
from flash_attention.compile import compile_kernel
from flash_attention.compile.unit import combine_unit, translation_unit
from flash_attention.errors import LaunchError
from flash_attention.families.sm90.forward.splits import Chunks
from flash_attention.kernel_configs import HopperForwardKernelConfig
from flash_attention.launch.combine import Combine
from flash_attention.launch.emulation import Settings, emulate_args
from flash_attention.launch.kernels import CombineKernel
from flash_attention.launch.plan import CPU, LaunchPlan
from tests.emulator.edits import Edit, edited_headers
from tests.feature_cases import Call, Case

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

    def plan(self, call: Call) -> tuple[LaunchPlan, Extras]:
        given = call.arguments | {"return_lse": True}
        if self.max_seqlen_k:
            given["max_seqlen_k"] = self.max_seqlen_k
        options = Options(**{name: given[name] for name in Options._fields if name in given})
        extras = Extras(**{name: given.get(name) for name in Extras._fields})
        problem, views = check_call(call.q, call.k, call.v, None, options, extras)
        plan = LaunchPlan(
            *(self.config, problem, views, CPU, ARCH, True),
            given=tuple(extras.given()),
            chunks=self.chunks(problem),
        )
        return plan, extras


class EditedCombine(Combine):
    """The second kernel of a plan, compiled from other headers."""

    def __init__(self, plan: LaunchPlan, include: Path) -> None:
        config, chunks = plan.config, plan.chunks
        assert isinstance(config, HopperForwardKernelConfig)
        assert chunks is not None
        target, rows = config.target(ARCH), chunks.tile_rows(config.consumers)
        super().__init__(chunks, plan.problem, config, target, CPU)
        source = combine_unit(config.dtype, chunks.features(PLAIN), rows)
        self._edited = compile_kernel(source, arch=target, name="mutated", include_dir=include)

    def kernel(self) -> CombineKernel:
        return CombineKernel(self._edited)


@dataclass(frozen=True)
class Catch:
    """What a run of mutated kernels gave away."""

    kinds: frozenset[str]
    output_right: bool


def attempt(scene: Scene, edits: Iterable[Edit], folder: Path, schedule: str = "lockstep") -> Catch:
    """Run a scene with kernels from headers of which `folder` holds an edited copy."""
    call = scene.case.make()
    plan, extras = scene.plan(call)
    include = edited_headers(edits, folder)
    source, target = translation_unit(plan.config, plan.features), plan.config.target(ARCH)
    ptx = compile_kernel(source, arch=target, name="mutated", include_dir=include).ptx
    if plan.combine is not None:
        plan.combine = EditedCombine(plan, include)
    inputs = (call.q, call.k, call.v)
    args = plan.bind(*inputs, None, extras=extras)
    try:
        result = emulate_args(plan, args, ptx, inputs, Settings(schedule), extras=extras)
    except LaunchError:
        return Catch(frozenset({DEADLOCK}), output_right=False)
    kinds = frozenset(finding.kind for finding in result.findings)
    try:
        call.assert_right(result.output.nan_to_num(nan=torch.inf), result.lse)
    except AssertionError:
        return Catch(kinds, output_right=False)
    return Catch(kinds, output_right=True)
