# SPDX-License-Identifier: Apache-2.0
"""The digest of kernels: of one as the compile cache has it, of several by each of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flash_attention.call.features import CAUSAL, PLAIN
from flash_attention.compile import compile_kernel
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import WORKSPACE_VARIABLE
from flash_attention.families.registry import family_called, unit_of
from flash_attention_workbench.tune import kernels
from flash_attention_workbench.tune.candidates import heuristic
from flash_attention_workbench.tune.kernels import kernel_digest, kernels_of
from tests.workbench.tune.made_up import SM90, dense, dense_backward

FORWARD = heuristic(dense(), SM90)
BACKWARD = heuristic(dense_backward(), SM90)


def test_a_kernel_goes_by_what_the_compile_cache_goes_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path))
    unit = unit_of(FORWARD, PLAIN, SM90)
    path = compile_kernel(unit.source, arch=unit.target, name="any").source_path
    assert path is not None
    assert path.parent.name.endswith(kernel_digest(FORWARD, PLAIN, SM90))
    assert kernel_digest(FORWARD, CAUSAL, SM90) != kernel_digest(FORWARD, PLAIN, SM90)


def test_gradients_go_by_all_of_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    units = kernels_of(BACKWARD, dense_backward(), SM90)
    assert len(units) == 3
    kernel_digest.cache_clear()
    digest = kernel_digest(BACKWARD, dense_backward(), SM90)
    assert len(digest) == 16
    known = kernels._cache_key
    for changed in units:

        def edited(unit: object, changed: object = changed) -> str:
            return "edited" if unit == changed else known(unit)  # type: ignore[arg-type]

        monkeypatch.setattr(kernels, "_cache_key", edited)
        kernel_digest.cache_clear()
        assert kernel_digest(BACKWARD, dense_backward(), SM90) != digest
    kernel_digest.cache_clear()


def test_a_smaller_workspace_is_timed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = replace(dense_backward(), d_head=256)
    config = heuristic(problem, SM90)
    kernel_digest.cache_clear()
    digest, launches = kernel_digest(config, problem, SM90), problem.units(config, SM90)
    monkeypatch.setenv(WORKSPACE_VARIABLE, "64")
    kernel_digest.cache_clear()
    assert len(problem.units(config, SM90)) > len(launches)
    assert kernel_digest(config, problem, SM90) != digest
    kernel_digest.cache_clear()


def test_gradients_of_other_lengths_have_the_same_kernels() -> None:
    short, long = dense_backward(2048), dense_backward(4096)
    assert kernel_digest(BACKWARD, short, SM90) == kernel_digest(BACKWARD, long, SM90)
    flash = family_called("sm80", Pass.BACKWARD).heuristic(long.problem, SM90)
    repeated = dense_backward(deterministic=True)
    assert kernel_digest(flash, long, SM90) != kernel_digest(flash, repeated, SM90)
