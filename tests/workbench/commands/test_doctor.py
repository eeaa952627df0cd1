# SPDX-License-Identifier: Apache-2.0
"""`doctor` reports what is here, and what to do about what is not."""

from __future__ import annotations

import json
import platform

import pytest
import torch

from flash_attention import compile as compiler
from flash_attention.compile.library import nvrtc_library
from tests.workbench.commands.invoke import invoke

CHECKS = [
    *("flash-attention-jit", "python", "torch", "cuda-bindings", "nvrtc", "driver", "gpu"),
    *("cache", "nvdisasm"),
]


def test_json_states_every_fact() -> None:
    report = json.loads(invoke("doctor", "--json", "-"))
    assert report["ok"] is True
    checks = report["checks"]
    assert list(checks) == [*CHECKS, "compile", "emulator", "launch"]
    assert checks["python"]["detail"] == platform.python_version()
    assert torch.__version__ in checks["torch"]["detail"]
    library = nvrtc_library()
    why = f"{compiler.nvrtc_version()}, {library.why} ({library.path})"
    assert checks["nvrtc"]["detail"] == why
    assert str(compiler.cache_dir()) in checks["cache"]["detail"]
    assert checks["compile"]["status"] == "ok"
    assert "registers" in checks["compile"]["detail"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_advice_not_failure() -> None:
    checks = json.loads(invoke("doctor", "--json", "-"))["checks"]
    for name in ("gpu", "launch"):
        assert checks[name]["status"] == "missing"
        assert checks[name]["advice"]


@pytest.mark.gpu
def test_the_probe_launch_agrees_with_the_oracle() -> None:
    launch = json.loads(invoke("doctor", "--json", "-"))["checks"]["launch"]
    assert launch["status"] == "ok"
    assert "within" in launch["detail"]


def test_the_table_shows_the_same_rows() -> None:
    table = invoke("doctor")
    for name in CHECKS:
        assert name in table
