# SPDX-License-Identifier: Apache-2.0
"""Mistakes planted in the package's headers: the call that shows each, and what it gives away."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.choose.choice import Choice, Rule
from flash_attention.errors import LaunchError
from flash_attention.families.recipe import Setting
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.kernel_configs import FlashForwardKernelConfig, HopperForwardKernelConfig
from flash_attention.launch import plan as plans
from flash_attention.launch.emulation import Settings, emulate_plan
from flash_attention.launch.plan import Plan
from flash_attention_workbench.mends import NUMBERS
from flash_attention_workbench.plants import find_plant
from ptx_emulator import DeadlockError, Finding
from ptx_emulator.report.mends import DEADLOCK
from tests.emulator.edits import Edit, compiler, edited_headers
from tests.feature_cases import Case, MadeCase

TILE_COUNTER = "tile counter"  # it is not zero after the launch


@dataclass(frozen=True)
class Scene:
    """A call, the config that runs it, and how its keys are cut: into splits of `split_keys`,
    evenly for so many `ctas`, or not at all, with the `heads_together` or one by one."""

    case: Case
    config: FlashForwardKernelConfig | HopperForwardKernelConfig
    rung: int = 0  # whose config it is, but for fields that let a mistake show
    split_keys: int = 0
    ctas: int = 0
    heads_together: bool = False
    one_launch: bool = False  # the last CTA of a tile combines its splits
    max_seqlen_k: int = 0  # if it is not the length of the longest keys
    return_lse: bool = True

    def kv_splits(self, problem: Problem) -> KvSplits | None:
        block_keys = self.config.B_c
        if self.split_keys:
            kv_splits = KvSplits.of_keys(problem, block_keys, self.split_keys)
            return replace(kv_splits, one_launch=self.one_launch)
        if self.ctas:
            kv_splits = KvSplits.even(problem, block_keys, self.ctas, least=1)
            return replace(kv_splits, one_launch=self.one_launch)
        return KvSplits.whole(problem, block_keys) if self.heads_together else None

    def make(self) -> MadeCase:
        return _made(self.case, self.config.dtype.to_torch_dtype())

    def call(self, made: MadeCase) -> Call:
        """The call; V lies in memory head by head, so its strides are not those of K."""
        v = made.v.transpose(-3, -2).contiguous().transpose(-3, -2)
        call = made.call(return_lse=self.return_lse)._replace(v=v)
        return call._replace(max_seqlen_k=self.max_seqlen_k) if self.max_seqlen_k else call

    def plan(self, call: Call) -> Plan:
        """The plan of the call, its keys cut as the scene says."""

        def choose(problem: Problem, setting: Setting, *given: Any, **asked: Any) -> Choice:
            return Choice(self.config, replace(setting, split=self.kv_splits(problem)), Rule.GIVEN)

        with patch.object(plans, "choose", choose):
            return Plan(call, self.config)


@cache
def _made(case: Case, dtype: torch.dtype) -> MadeCase:
    return case.make(dtype=dtype)


@dataclass(frozen=True)
class Mutation:
    """A bug planted in the kernels of a scene, run with its warps in an order that shows it.

    A `silent` bug leaves the output right: only the finding sees it.
    """

    name: str
    caught_by: str
    scene: Scene
    edits: tuple[Edit, ...] = ()
    silent: bool = False
    schedule: str = "lockstep"
    missing_smem_bytes: int = 0


def mutation_of(name: str, text: str, scene: Scene) -> Mutation:
    """A mistake that `flash-attention emulate --plant` has too, under what documents call it."""
    plant = find_plant(name)
    return Mutation(text, plant.caught_by, scene, plant.edits, plant.silent)


@dataclass(frozen=True)
class Catch:
    """What a run of mutated kernels gave away; `refusal` says why it did not come to an end."""

    kinds: frozenset[str]
    output_right: bool
    refusal: str = ""


@cache
def catch(mutation: Mutation, schedule: str | None = None) -> Catch:
    """Run kernels with one mistake, in the mutation's order of warps unless another is given."""
    scene = mutation.scene
    made = scene.make()
    call = scene.call(made)
    missing = mutation.missing_smem_bytes
    with tempfile.TemporaryDirectory() as folder:
        planted = None
        if mutation.edits:
            planted = compiler(edited_headers(mutation.edits, Path(folder)))
        try:
            result = emulate_plan(
                scene.plan(call),
                call,
                Settings(schedule or mutation.schedule),
                compile_unit=planted,
                smem_bytes=scene.config.smem_bytes() - missing if missing else None,
            )
        except LaunchError as error:
            return _refused(error)
    kinds = frozenset(finding.kind for finding in result.findings)
    try:
        made.assert_right(result.output.nan_to_num(nan=torch.inf), result.lse)
    except AssertionError:
        return Catch(kinds, output_right=False)
    return Catch(kinds, output_right=True)


def _refused(error: LaunchError) -> Catch:
    deadlock = error.__cause__
    if not isinstance(deadlock, DeadlockError):
        return Catch(frozenset({TILE_COUNTER}), output_right=False, refusal=str(error))
    found = {item.kind for item in deadlock.findings if isinstance(item, Finding)}
    return Catch(frozenset({DEADLOCK, *found}), output_right=False, refusal=str(error))


def caught(mutation: Mutation, seen: Catch) -> bool:
    """Whether the catcher that was named before the run is among those that fired."""
    if mutation.caught_by == NUMBERS:
        return not seen.output_right
    return mutation.caught_by in seen.kinds
