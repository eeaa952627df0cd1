# SPDX-License-Identifier: Apache-2.0
"""What is explained is what the launch plan does, and what nobody launches costs nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfigError,
    UnsupportedError,
    attention,
    check,
    explain,
    forward,
)
from flash_attention.choose.choice import Rule
from flash_attention.families.sm90.forward.combine import combine_unit
from flash_attention.families.sm90.forward.config import HOPPER
from flash_attention.families.sm90.forward.features import Sm90Features, SplitKind
from flash_attention.launch.device import EMULATED_SMS
from flash_attention.launch.kernels import get_kernel, load_unit
from flash_attention.launch.plan import Plan
from flash_attention_workbench.explain import Explanation
from flash_attention_workbench.explain.gpus import GPUS
from tests.decode_cases import in_pages, shuffled_table
from tests.feature_cases import CASES, Case
from tests.gate import one_in
from tests.serving_steps import Step, of_8_bits

SMALL = HopperForwardKernelConfig(DType.BF16, 64, 1, 64, 2, tma=True, specialised=True)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def square(seq: int, heads: int = 4, d: int = 64, batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    q = meta(batch, seq, heads, d)
    return q, q, q


def why(explanation: Explanation, kernels: str) -> str:
    (refusal,) = (r for r in explanation.refused if r.kernels == kernels)
    return refusal.why


def test_the_config_of_pages_can_be_passed_back() -> None:
    call = Case("", 2, 512, used=(500,)).make()
    table = shuffled_table(1, 8)
    k, v = (in_pages(t, table, 64) for t in (call.k, call.v))
    asked: dict[str, Any] = {**call.arguments, "block_table": table}
    explanation = explain(call.q, k, v, arch="sm_90", **asked)
    assert explanation.rule.startswith(Rule.DECODE.value)
    named = explanation.config
    for out in (
        forward(named, call.q, k, v, **asked),
        attention(call.q, k, v, config=named.short_form(), **asked),
    ):
        call.assert_right(out)
    assert check(call.q, k, v, config=named, **asked).ok
    assert explain(call.q, k, v, config=named, **asked).config == named


@pytest.mark.slow  # a kernel is compiled for every case
@pytest.mark.parametrize("case", one_in(8, CASES, id_of=lambda case: str(case.name)))
def test_every_case_is_explained_as_it_would_be_planned(case: Case) -> None:
    call = case.make()
    explanation = explain(
        *(call.q, call.k, call.v), **call.arguments, arch="sm_90", num_sms=EMULATED_SMS
    )
    plan = Plan(call.call())
    assert (explanation.config, explanation.problem) == (plan.config, plan.problem)
    assert explanation.features == tuple(plan.recipe.features.words())
    for launch, step in zip(explanation.launches, plan.recipe.steps, strict=True):
        assert (launch.grid, launch.threads) == (step.geometry.grid, step.geometry.block)
        assert (launch.name, launch.smem_bytes) == (step.unit.name, step.geometry.smem_bytes)
    assert (explanation.tiles, explanation.num_splits) == (
        plan.recipe.tiles,
        plan.recipe.num_splits,
    )
    assert explanation.torch_computes


def test_a_long_call_on_an_h200() -> None:
    explanation = explain(*square(1024, batch=16), causal=True)
    kernel = get_kernel(explanation.config, HOPPER, explanation.problem.features)
    (launch,) = explanation.launches
    assert explanation.rule == "heuristic: d_head 64, masked, up to 1024 queries"
    assert (explanation.gpu, explanation.num_sms) == (GPUS[0], 132)
    assert (launch.registers, launch.spill_bytes) == (kernel.registers, kernel.spills)
    assert launch.ctas_per_sm == kernel.ctas_per_sm == 1
    assert "registers" in launch.limited_by
    assert launch.grid == (132, 1, 1)
    assert explanation.tiles == 16 * 4 * 1024 // explanation.config.B_r
    assert explanation.waves == explanation.tiles / 132
    assert explanation.compute_ms == pytest.approx(4 * 64 * 64 * 1024**2 / 2 / 784.3e9)
    assert explanation.memory_ms == pytest.approx(16 * 1024 * 4 * 64 * 4 * 2 / 4.27e9)
    assert explanation.bound == "compute"
    assert why(explanation, "split-KV") == "1024 queries do not fit in 64 rows"
    assert "it would run" in why(explanation, "FlashForwardKernelConfig")


def test_the_peaks_are_those_that_are_stored() -> None:
    stored = json.loads((Path(__file__).parents[3] / "results" / "h200_peaks.json").read_text())
    (gpu,) = GPUS
    assert gpu.name == stored["device"]
    assert gpu.matmul_tflops == round(stored["peak"]["bf16_matmul_tflops"], 1)
    assert gpu.copy_tb_s == round(stored["peak"]["copy_tb_s"], 2)


def test_an_h200_that_is_not_here_follows_its_table() -> None:
    q, k, v = (torch.empty(2, 8192, 16, 128, dtype=torch.bfloat16, device="meta") for _ in "qkv")
    explanation = explain(q, k, v, causal=True)
    assert explanation.rule.startswith("table: measured for this problem")
    assert (explanation.config.B_r, explanation.config.B_c) == (192, 64)
    elsewhere = explain(q, k, v, causal=True, arch="sm_90", num_sms=114)
    assert (elsewhere.config.B_r, elsewhere.config.B_c) == (128, 128)


def test_a_short_call_is_cut_combined_and_bound_by_memory() -> None:
    cache = meta(1, 8192, 2, 64)
    explanation = explain(meta(1, 16, 8, 64), cache, cache)
    forward, combine = explanation.launches
    config = explanation.config
    assert isinstance(config, HopperForwardKernelConfig)
    features = Sm90Features(heads_together=4, decode=True, splits=SplitKind.FIXED)
    compiled = load_unit(combine_unit(config.dtype, features, 64, 128, "sm_90a")).compiled
    assert explanation.rule.startswith("decode: 64 rows that share a head of k and v fit")
    assert explanation.features == ("heads_4", "fixed")
    assert (explanation.tiles, explanation.num_splits) == (2, 16)  # of 16 of the 2 x 128 blocks
    assert forward.grid == (16, 1, 1)
    assert combine.name == "combine_bf16_64_heads_4_fixed"
    assert combine.registers == compiled.resources.registers
    assert combine.grid == (128, 1, 1)
    assert explanation.bound == "memory"
    assert [r.kernels for r in explanation.refused] == ["FlashForwardKernelConfig"]


def test_other_architectures_have_the_first_family_and_no_measured_peak() -> None:
    explanation = explain(*square(256), arch="sm_80")
    assert isinstance(explanation.config, FlashForwardKernelConfig)
    assert (explanation.num_sms, explanation.waves, explanation.bound) == (None, None, None)
    assert "need sm_90" in why(explanation, "HopperForwardKernelConfig")
    assert "waves: unknown, pass num_sms" in str(explanation)
    assert "bound" in str(explanation)
    assert "unknown: nobody measured" in str(explanation)
    counted = explain(*square(256), arch="sm_80", num_sms=10)
    ctas = counted.launches[0].ctas_per_sm
    assert counted.waves == 2 * 4 / (10 * ctas)


def test_the_first_family_would_run_too() -> None:
    explanation = explain(*square(256))
    assert "it would run" in why(explanation, "FlashForwardKernelConfig")
    predicated = explain(*square(256), arch="sm_80", return_lse=True)
    assert predicated.features == ("predicated",)


def test_among_kernels_of_one_architecture_the_reason_is_no_newer_one() -> None:
    def preferred(refused: str, *tensors: Tensor, **asked: Any) -> str:
        return why(explain(*tensors, **asked, arch="sm_90"), refused)

    bits_8, one = meta(1, 256, 2, 64, dtype=torch.float8_e4m3fn), meta(1, dtype=torch.float32)
    factors = {"q_descale": one, "k_descale": one, "v_descale": one}
    instead = "it would run, but {}KernelConfig kernels are preferred, which "
    said = preferred("HopperForwardKernelConfig", bits_8, bits_8, bits_8, **factors)
    assert said == instead.format("HopperFp8") + "multiply numbers of 8 bits as they are"
    few, many = (meta(1, n, 4, 128, dtype=bits_8.dtype) for n in (1, 4096))
    said = preferred("HopperFp8KernelConfig", few, many, many, **factors)
    assert said == instead.format("HopperForward") + "are made for decoding"
    latent = meta(1, 256, 1, 320)
    said = preferred("HopperWideKernelConfig", meta(1, 8, 8, 320), latent, latent[..., :256])
    assert said == instead.format("HopperMla") + "read v with k, as a part of it"


def test_a_table_may_name_any_kernel() -> None:
    explanation = explain(*square(8192, heads=16, d=128, batch=2), causal=True)
    said = "it would run, but a table names another kernel for this problem"
    assert why(explanation, "FlashForwardKernelConfig") == said


@pytest.mark.usefixtures("no_compile")
def test_a_reason_of_several_families_is_said_once() -> None:
    bits_8, one = meta(1, 256, 2, 64, dtype=torch.float8_e4m3fn), meta(1, dtype=torch.float32)
    factors: dict[str, Any] = {"q_descale": one, "k_descale": one, "v_descale": one}
    with pytest.raises(UnsupportedError, match="no others read 8 bits: convert them") as refused:
        explain(bits_8, bits_8, bits_8, **factors, arch="sm_80")
    assert str(refused.value).count("need sm_90") == 1


def test_a_given_config_is_taken_and_nothing_else_considered() -> None:
    explanation = explain(*square(100), config=SMALL, causal=True)
    assert (explanation.config, explanation.rule) == (SMALL, Rule.GIVEN.value)
    assert explanation.refused == ()
    assert not explanation.torch_computes
    split = explain(*square(100), config=SMALL, split_keys=64)
    assert split.num_splits == 2 * split.tiles


@pytest.mark.usefixtures("no_compile")
def test_without_a_query_nothing_is_compiled() -> None:
    explanation = explain(meta(2, 0, 4, 64), *square(100, batch=2)[1:])
    assert (explanation.launches, explanation.waves, explanation.work.flop) == ((), None, 0)
    assert "none: there is nothing to compute" in str(explanation)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arch": "sm_70"}, "unknown architecture 'sm_70'"),
        ({"num_sms": 0}, "num_sms is 0; pass how many multiprocessors"),
        ({"window": (-2, 0)}, "each side is a whole number"),
        ({"split_keys": 96, "config": SMALL}, "blocks of 64"),
    ],
)
def test_what_attention_refuses_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        explain(*square(256), **change)


@pytest.mark.usefixtures("no_compile")
def test_tensors_and_configs_are_checked() -> None:
    q, k, v = square(64)
    with pytest.raises(KernelConfigError, match="'fastest' is not a kernel config"):
        explain(q, k, v, config="fastest")
    with pytest.raises(KernelConfigError, match="needs sm_90"):
        explain(q, k, v, config=SMALL, arch="sm_80")
    with pytest.raises(UnsupportedError, match=r"q is torch\.float32"):
        explain(q.float(), k, v)
    call = Case("", (10, 20), (15, 25)).make()
    wrong = call.arguments | {"max_seqlen_q": 15}
    with pytest.raises(UnsupportedError, match="sequence 1 of q has 20 rows"):
        explain(call.q, call.k, call.v, validate=True, **wrong)


def test_the_report_is_data_too() -> None:
    explanation = explain(*square(100), config=SMALL)
    report = json.loads(json.dumps(explanation.to_dict()))
    assert report["config"] == SMALL.short_form()
    assert report["work"]["flop"] == explanation.work.flop
    assert report["launches"][0]["registers"] == explanation.launches[0].registers
    assert report["bound"] == explanation.bound
    for line in (SMALL.short_form(), f"{explanation.launches[0].registers} registers, no spills"):
        assert line in str(explanation)


def test_both_kernels_of_a_mixed_step_are_explained() -> None:
    call = of_8_bits(Step((100, *(1,) * 4), (100,) * 5).call(), q_8_bit=False)
    keywords = {name: given for name, given in call.keywords().items() if given is not None}
    explanation = explain(*call[:3], arch="sm_90", **keywords)
    decoding = explanation.decoding
    assert decoding is not None
    assert decoding.most_queries == 32
    assert [launch.name for launch in explanation.launches] == [
        load_unit(step.unit).compiled.name
        for step in Plan(call, arch=explanation.arch).recipe.steps
    ]
    report = str(explanation)
    assert f"{explanation.config.short_form()}, for sequences with over 32 queries" in report
    assert f"{decoding.config.short_form()}, for sequences with up to 32 queries" in report
    assert "from_33" in explanation.features
    assert "upto_32" in decoding.features
    assert json.loads(json.dumps(explanation.to_dict()))["decoding"]["most_queries"] == 32


@pytest.mark.gpu
def test_on_a_gpu_nothing_runs_and_nothing_is_allocated() -> None:
    q, k, v = (torch.randn(2, 512, 4, 64, dtype=torch.bfloat16, device="cuda") for _ in "qkv")
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    explanation = explain(q, k, v)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert explanation.num_sms == torch.cuda.get_device_properties(0).multi_processor_count
    with pytest.raises(UnsupportedError, match="which has its own; leave them out"):
        explain(q, k, v, arch="sm_90")
    assert torch.equal(attention(q, k, v), attention(q, k, v, config=explanation.config))
