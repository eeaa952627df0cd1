# SPDX-License-Identifier: Apache-2.0
"""The backward pass is explained as its plan has it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import KernelConfigError, Table, UnsupportedError, use_table
from flash_attention.arch import ARCHES
from flash_attention.call.backward_call import BackwardCall, Wanted
from flash_attention.call.call import Call
from flash_attention.families.recipe import WORKSPACE_VARIABLE
from flash_attention.launch.device import EMULATED_SMS
from flash_attention.launch.plan import Plan
from flash_attention_workbench.explain import explain
from flash_attention_workbench.explain.backward import BackwardExplanation
from flash_attention_workbench.tune.candidates import heuristic, neighbours
from tests.workbench.commands.invoke import invoke
from tests.workbench.tune import made_up

SHAPE = (2, 100, 4, 64)  # rows of a head are padded to 2 x 128


def dense(requires: str = "", d: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.zeros(*SHAPE[:-1], d, dtype=torch.bfloat16) for _ in range(3))
    for name, tensor in zip("qkv", (q, k, v), strict=True):
        tensor.requires_grad_(name in requires)
    return q, k, v


def backward_of(*tensors: Tensor, **keywords: Any) -> BackwardExplanation:
    found = explain(*tensors, **keywords).backward
    assert found is not None
    return found


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_it_is_what_the_plan_launches(arch: str, deterministic: bool) -> None:
    q, k, v = dense()
    keywords: dict[str, Any] = {"causal": True, "sinks": torch.zeros(4)}
    explained = backward_of(
        q,
        k,
        v,
        arch=arch,
        num_sms=EMULATED_SMS,
        gradients=True,
        deterministic=deterministic,
        **keywords,
    )
    call = Call(q, k, v, torch.empty_like(q), **keywords)
    wanted = Wanted(dsinks=True)
    given = BackwardCall(q, call, torch.zeros(2, 4, 100), None, wanted, deterministic)
    plan = Plan(given, arch=ARCHES[arch])
    assert (explained.config, explained.wanted) == (plan.config, wanted)
    assert explained.deterministic is deterministic
    assert {s.name: s.num_bytes for s in explained.scratch} == dict(plan.recipe.scratch)
    for launch, step in zip(explained.launches, plan.recipe.steps, strict=True):
        assert (launch.name, launch.grid) == (step.unit.name, step.geometry.grid)
        assert (launch.threads, launch.smem_bytes) == (
            step.geometry.block,
            step.geometry.smem_bytes,
        )


def test_a_table_that_chose_the_kernels_is_named() -> None:
    problem = made_up.dense_backward(4096, causal=True)
    own = heuristic(problem, made_up.SM90)
    config = neighbours(own, problem)[0]
    use_table(Table("NVIDIA H200").with_entries([made_up.entry(problem, config, heuristic=own)]))
    q = torch.empty(4, 4096, 16, 128, dtype=torch.bfloat16, device="meta")
    try:
        explained, other = (
            backward_of(q, q, q, causal=True, arch="sm_90", gradients=True, deterministic=asked)
            for asked in (False, True)
        )
    finally:
        use_table(None)
    assert explained.config == config
    assert explained.rule == (
        "table: measured for this problem: 1 ms, the heuristic's 1.1 ms (the table, 2026-11-15)"
    )
    assert other.rule == "heuristic: d_head 128, masked"


def test_memory_is_told_by_formula() -> None:
    explained = backward_of(*dense(), arch="sm_80", num_sms=108, gradients=True)
    assert [str(scratch) for scratch in explained.scratch] == [
        "lse_log2: 4,096 bytes, 4 heads x 256 rows x 4",
        "delta: 4,096 bytes, 4 heads x 256 rows x 4",
        "dq_sum: 262,144 bytes, 4 heads x 256 rows x 64 columns x 4",
    ]
    assert explained.extra_bytes == 270336


@pytest.mark.parametrize(
    ("d", "splits", "bits"),
    [
        (96, "", "may vary between runs in dq, dk and dv, whose terms are added in any order; "),
        (160, "3 splits x ", "the same in every run, asked for or not"),
    ],
)
def test_sums_of_splits_of_heads(d: int, splits: str, bits: str) -> None:
    q, k = torch.empty(2, 1000, 12, d).bfloat16(), torch.empty(2, 1000, 2, d).bfloat16()
    explained = backward_of(q, k, k, causal=True, arch="sm_90", num_sms=132, gradients=True)
    told = {scratch.name: str(scratch) for scratch in explained.scratch}
    for name in ("dk_sum", "dv_sum"):
        assert told[name].endswith(f"bytes, {splits}2 heads of k x 2,048 rows x {d} columns x 4")
    assert explained.sections()["bits"][0].startswith(bits)


def test_only_what_requires_grad_is_computed() -> None:
    assert explain(*dense()).backward is None
    assert backward_of(*dense("q")).wanted == Wanted(True, False, False)
    frozen = backward_of(*dense("kv"), sinks=torch.zeros(4, requires_grad=True), arch="sm_80")
    assert frozen.wanted == Wanted(False, True, True, True)
    assert [s.name for s in frozen.scratch] == ["lse_log2", "delta"]
    with torch.no_grad():
        assert explain(*dense("q")).backward is None


def test_bits_repeat_if_asked_or_without_sums() -> None:
    def bits(*tensors: Tensor, **keywords: Any) -> str:
        explained = backward_of(*tensors, arch="sm_80", **keywords)
        return explained.sections()["bits"][0]

    vary = "may vary between runs in dq, whose terms are added in any order; pass deterministic"
    assert bits(*dense("qkv")) == vary
    assert bits(*dense("qkv"), deterministic=True) == "the same in every run, as asked for"
    assert bits(*dense("kv")) == "the same in every run, asked for or not"
    torch.use_deterministic_algorithms(True)
    try:
        assert bits(*dense("qkv")) == "the same in every run, as asked for"
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_workspace_has_fixed_order_and_its_launches_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(WORKSPACE_VARIABLE, "1")
    q = torch.empty(1, 1024, 2, 256, dtype=torch.bfloat16, device="meta")
    explained = backward_of(q, q, q, arch="sm_90", gradients=True)
    sizes = {scratch.name: scratch.num_bytes for scratch in explained.scratch}
    assert 0 < sizes["ds"] <= 1 << 20
    assert explained.repeats
    assert explained.sections()["bits"] == ["the same in every run, asked for or not"]
    names = [launch.name for launch in explained.launches]
    lines = " ".join(explained.sections()["launches"])
    assert max(map(names.count, names)) > 1
    for name in names:
        assert lines.count(f"{name},") == 1
        assert names.count(name) == 1 or f"{names.count(name)} times: {name}," in lines
    (ds,) = (scratch for scratch in explained.scratch if scratch.name == "ds")
    assert ds.formula == f"which parts of the work share: at most 1 MiB by {WORKSPACE_VARIABLE}"


def test_a_given_config_is_not_compared_with_others() -> None:
    config = "backward(BF16, 64, 64, 64, 4): columns_1"
    explained = backward_of(*dense(), gradients=True, backward_config=config)
    assert (explained.rule, explained.refused) == ("given by the caller", ())
    forward = "hopper(BF16, 64, 2, 128, 2): tma+specialised"
    with pytest.raises(KernelConfigError, match="a config of the forward pass"):
        explain(*dense(), gradients=True, backward_config=forward)


def test_what_cannot_be_trained_is_refused_as_by_the_call() -> None:
    q, k, v = dense("q")
    with pytest.raises(UnsupportedError, match="out is given and a tensor requires grad"):
        explain(q, k, v, out=torch.empty_like(q))


def test_a_workspace_is_read_where_the_plan_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE_VARIABLE, "much")
    with pytest.raises(UnsupportedError, match=f"{WORKSPACE_VARIABLE} is 'much'"):
        explain(*dense(), gradients=True)


def test_the_command_tells_the_same() -> None:
    arguments = ("explain", "--shape", "2,100,4,4,64", "--arch", "sm_80", "--gradients")
    explanation = explain(*(t.to("meta") for t in dense()), arch="sm_80", gradients=True)
    told = json.loads(invoke(*arguments, "--deterministic", "--json", "-"))["backward"]
    assert (told["deterministic"], told["repeats"]) == (True, True)
    assert [s["name"] for s in told["scratch"]] == ["lse_log2", "delta"]
    printed = " ".join(invoke(*arguments).split())
    assert explanation.backward is not None
    for name, lines in explanation.backward.sections().items():
        assert not lines or name in printed
    for scratch in explanation.backward.scratch:
        assert str(scratch) in printed
