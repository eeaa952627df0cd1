# SPDX-License-Identifier: Apache-2.0
"""Kernels compiled by children: each once, answers as they come, refusals among them."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from flash_attention.arch import DEFAULT_ARCH
from flash_attention.call.features import PLAIN, Features
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
)
from flash_attention.ladder import get_ladder
from flash_attention_workbench.tune.candidates import heuristic
from flash_attention_workbench.tune.compiling import Compilers, compile_job
from flash_attention_workbench.tune.kernels import kernels_of
from flash_attention_workbench.tune.measurer import Compiled, Failure
from tests.workbench.tune.made_up import dense_backward

pytestmark = pytest.mark.slow  # left out of `make quick`


def test_answers_are_resources_or_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path))
    base = get_ladder()[0].config
    well = (base, PLAIN, DEFAULT_ARCH)
    gradients = FlashBackwardKernelConfig(DType.BF16, 128, 64, 64, 4)
    refused = (gradients, Features(page_keys=64), DEFAULT_ARCH)
    unknown = (base, PLAIN, replace(DEFAULT_ARCH, name="sm_20"))
    compilers = Compilers(1, compile_job)
    try:
        compilers.submit([unknown, well])
        compilers.submit([well], urgent=True)
        answers = dict(compilers.answers([well, refused, unknown]))
        assert dict(compilers.answers([well])) == {well: answers[well]}
    finally:
        compilers.close()
    assert not compilers._queue
    compiled = answers[well]
    assert isinstance(compiled, Compiled)
    assert 32 < compiled.registers <= 255
    assert compiled.spill_bytes == 0
    for job, word in ((refused, "block_table"), (unknown, "sm_20")):
        failure = answers[job]
        assert isinstance(failure, Failure)
        assert failure.fate == "refused"
        assert word in failure.reason


def test_all_kernels_of_gradients_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path))
    problem = dense_backward(deterministic=True)
    config = heuristic(problem, DEFAULT_ARCH)
    answer = compile_job(lambda note: None, config, problem, DEFAULT_ARCH)
    assert isinstance(answer, Compiled)
    assert 128 < answer.registers <= 255  # those of the main kernel, and not of the one before it
    units = kernels_of(config, problem, DEFAULT_ARCH)
    assert len(units) == 3
    folders = [path.name for path in tmp_path.iterdir() if path.is_dir()]
    for unit in units:
        assert any(folder.startswith(unit.name) for folder in folders)


def test_what_nobody_waits_for_any_longer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    base = get_ladder()[0].config
    assert isinstance(base, FlashForwardKernelConfig)
    jobs = [(replace(base, B_c=keys), PLAIN, DEFAULT_ARCH) for keys in (32, 64, 128)]
    compilers = Compilers(1, compile_job)
    compilers.submit(jobs[1:])
    compilers._answers[jobs[0]] = done = Future[Compiled | Failure]()
    done.set_result(Compiled(128, 0))
    waiting = compilers.answers(jobs[:2])
    assert next(waiting) == (jobs[0], Compiled(128, 0))
    assert compilers._queue == deque([jobs[1], jobs[1], jobs[2]])  # what is waited for comes first
    waiting.close()  # type: ignore[attr-defined]
    assert compilers._queue == deque([jobs[2]])
