# SPDX-License-Identifier: Apache-2.0
"""What keeps a kernel from being built is an outcome, never an exception."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from flash_attention.arch import DEFAULT_ARCH, MEASURED_ARCH
from flash_attention.call.backward_call import BackwardCall
from flash_attention.call.call import Call
from flash_attention.call.features import CAUSAL, PLAIN
from flash_attention.compile import compile_kernel
from flash_attention.compile.unit import Unit
from flash_attention.families.registry import unit_of
from flash_attention.kernel_configs import FlashForwardKernelConfig, HopperForwardKernelConfig
from flash_attention.ladder import get_ladder
from flash_attention.launch.plan import Plan
from flash_attention_workbench.commands.precompile import (
    Job,
    jobs_of,
    precompile,
    precompile_units,
    units_beside,
)
from tests.unchecked import unchecked

pytestmark = pytest.mark.slow  # left out of `make quick`


def test_a_refused_source_is_an_outcome_with_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path))
    config = get_ladder()[0].config
    (outcome,) = precompile([Job(config, dataclasses.replace(DEFAULT_ARCH, name="sm_20"))], 1)
    assert outcome.fate == "failed"
    assert "sm_20" in outcome.reason


def test_units_are_compiled_into_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path))
    unit = Unit("nothing", "sm_80", 'extern "C" __global__ void nothing() {}\n')
    wrong = dataclasses.replace(unit, source="no C++ at all")
    first, second = sorted(precompile_units([unit, wrong], 2))
    assert first == ""
    assert "no C++ at all" in second or "error" in second
    assert compile_kernel(unit.source, arch=unit.target, name=unit.name).compile_seconds is None


def test_a_config_that_breaks_a_rule_is_not_compiled() -> None:
    base = get_ladder()[0].config
    assert isinstance(base, FlashForwardKernelConfig)
    eager = unchecked(base, async_copy=False, eager_load_blocks=True)
    (outcome,) = precompile([Job(eager, DEFAULT_ARCH)], 1)
    assert (outcome.fate, outcome.reason) == ("not valid", "eager_needs_async")


def test_a_hopper_config_is_compiled_for_both_masks_and_only_for_hopper() -> None:
    configs = {type(rung.config): rung.config for rung in get_ladder()}
    flash, hopper = configs[FlashForwardKernelConfig], configs[HopperForwardKernelConfig]
    assert [job.features for job in jobs_of(flash, DEFAULT_ARCH)] == [PLAIN]
    assert [job.features for job in jobs_of(hopper, hopper.default_arch)] == [PLAIN, CAUSAL]
    outcomes = list(precompile(jobs_of(hopper, DEFAULT_ARCH), 1))
    assert [outcome.fate for outcome in outcomes] == ["not valid", "not valid"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d_head", [128, 256])
def test_heads_that_are_split_find_their_kernels_built(
    causal: bool, d_head: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = "flash_attention.families.sm90.backward.family"
    monkeypatch.setattr(f"{family}.head_splits", lambda *_: 2)
    q = torch.empty(1, 256, 64, d_head, dtype=torch.bfloat16)
    k = q[:, :, :8].clone()
    call = Call(q, k, k.clone(), q.clone(), causal=causal)
    backward = BackwardCall(q.clone(), call, torch.empty(1, 64, 256))
    plan = Plan(backward, arch=MEASURED_ARCH)
    split = plan.recipe.steps
    monkeypatch.undo()
    built: set[Unit] = set()
    for job in jobs_of(plan.config, MEASURED_ARCH):
        built |= {unit_of(job.config, job.features, job.arch), *units_beside(job)}
    assert any("add_splits" in step.unit.name for step in split)
    assert {step.unit for step in split} <= built
