# SPDX-License-Identifier: Apache-2.0
"""`check` prints what `flash_attention.check` returns, and its exit code tells the verdict."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from sys import modules
from typing import Any

import pytest
import torch

from flash_attention import DType
from flash_attention.kernel_configs import KERNEL_SETS, SET_VARIABLE, as_kernel_config
from flash_attention.reference.judge import generate_qkv
from flash_attention_workbench.check import CheckReport, check
from tests.workbench.commands.invoke import invoke, refuse

SMALL = ("--shape", "1,64,2,1,64", "--emulate")
COMMAND = "flash_attention_workbench.commands.check"  # the module, whose name the command has taken


def test_the_numbers_are_those_of_the_function() -> None:
    arguments = ("check", *SMALL, "--seq-k", "100", "--causal", "--lse", "--seed", "3")
    q, k, v = generate_qkv(1, 64, 2, 64, DType.BF16, "cpu", 3, seq_len_k=100, n_heads_k=1)
    report = check(q, k, v, causal=True, return_lse=True, emulate=True)
    assert json.loads(invoke(*arguments, "--json", "-")) == json.loads(json.dumps(report.to_dict()))
    printed = " ".join(invoke(*arguments).split())
    for name, line in report.rows():
        if name != "computed by":  # a long name is broken
            assert f"{name} {line}" in printed


def test_a_wrong_output_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*tensors: Any, **options: Any) -> CheckReport:
        report = check(*tensors, **options | {"emulate": False})
        return replace(report, output=replace(report.output, error=math.inf))

    monkeypatch.setattr(modules[COMMAND], "check_call", wrong)
    assert "WRONG" in invoke("check", *SMALL, exit_code=1)


def test_large_shapes_are_not_emulated_and_gpus_not_made_up() -> None:
    refusal = refuse("check", "--emulate")
    assert "the shape has 536,870,912 scores" in refusal
    assert "pass a smaller one, such as --emulate --shape 1,256,4,2,64" in refusal
    assert "elements in a tensor" in refuse("check", "--emulate", "--shape", f"1,8,1,1,{1 << 30}")
    if not torch.cuda.is_available():
        assert "torch finds no CUDA device; pass --emulate" in refuse("check")


def test_a_set_that_the_environment_names_is_checked_kernel_by_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = ("rung:2", "(BF16, 64, 64, 64, 4): load_2_2_2_tiles", "rung:16", "rung:18")
    configs = [as_kernel_config(each, dtype=DType.BF16, d_head=64) for each in kernels]
    others = [config.in_dtype(DType.FP16) for config in configs]
    monkeypatch.setitem(KERNEL_SETS, "progression", lambda arch, pass_: [*configs, *others])
    monkeypatch.setenv(SET_VARIABLE, "progression")
    shape = ("--shape", "1,64,2,2,64", "--emulate")
    report = json.loads(invoke("check", *shape, "--json", "-"))
    forms = [config.short_form() for config in configs]
    assert (report["ok"], list(report["reports"])) == (True, [forms[0], forms[1], forms[3]])
    assert "static_row_stride" in report["refused"][forms[2]]
    assert all(each["output"]["mismatched"] == 0 for each in report["reports"].values())
    one = json.loads(invoke("check", *shape, "--config", "rung:2", "--json", "-"))
    assert one == report["reports"][forms[0]] | {"problem": one["problem"]}
    monkeypatch.setenv(SET_VARIABLE, "fastest")
    assert "there is no kernel set 'fastest'" in refuse("check", *shape)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    report = json.loads(invoke("check", "--shape", "2,512,4,4,64", "--json", "-"))
    assert report["ok"]
    assert torch.cuda.get_device_name() in report["computed_by"]
