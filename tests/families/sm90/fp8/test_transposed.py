# SPDX-License-Identifier: Apache-2.0
"""FP8 kernels with a v whose keys are contiguous: numbers, recipes, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention import attention, explain
from flash_attention.arch import ARCHES, MEASURED_ARCH
from flash_attention.call.call import Call
from flash_attention.call.features import CAUSAL as CAUSAL_FEATURES
from flash_attention.call.features import PLAIN
from flash_attention.call.problem import Problem
from flash_attention.choose.heuristic import select_config
from flash_attention.compile import compile_kernel
from flash_attention.errors import UnsupportedError
from flash_attention.families.registry import unit_of
from flash_attention.families.sm90.fp8.config import HopperFp8KernelConfig
from flash_attention.families.sm90.fp8.family import SM90_FP8
from flash_attention.launch.plan import Plan
from tests.devices import on_devices
from tests.families.sm90.fp8.cases import OVERLAPPED, assert_right, most_rms
from tests.families.sm90.fp8.test_emulated import computed
from tests.families.sm90.fp8.test_family import problem
from tests.families.sm90.fp8.transposed_cases import CASES, OVERLAPPED_T, case, used
from tests.gate import in_turn, one_in


@pytest.mark.parametrize(("name", "device"), on_devices(one_in(3, CASES)))
def test_the_output_and_its_lse_are_right(name: str, device: str, schedule: str) -> None:
    config, of_case = CASES[name]
    call = of_case.call(config.d_head, device)
    assert call.v.stride(1) == 1
    assert_right(call, *computed(config, call, schedule), most_rms(config))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("window", "depth-first"),
        ("causal", "random"),
        ("serial", "random"),
        ("lengths, causal", "random"),
        ("d 256, causal, sharp", "depth-first"),
    ],
)
def test_they_are_right_in_every_order_of_warps(name: str, schedule: str) -> None:
    config, of_case = CASES[name]
    call = of_case.call(config.d_head)
    assert_right(call, *computed(config, call, schedule))


def test_a_weight_is_that_of_the_kernel_which_reads_tiles() -> None:
    call = case(70, 700).call(128)
    rows = call._replace(v=call.v.contiguous())
    one, lse = computed(OVERLAPPED_T, call)
    other, other_lse = computed(OVERLAPPED, rows)
    assert torch.allclose(one, other, rtol=2**-7, atol=1e-6)
    assert lse is not None
    assert other_lse is not None
    assert torch.allclose(lse, other_lse, atol=1e-6)


@pytest.mark.parametrize("key", [90, 101])  # loaded with the even keys, and with the odd ones
def test_nan_reaches_the_rows_that_see_it_and_no_other(key: int) -> None:
    call = case(130, 130, keywords=(("causal", True),)).call(128)
    k = call.k.float()
    k[:, key] = torch.nan
    out, _ = computed(OVERLAPPED_T, call._replace(k=k.to(call.k.dtype)))
    assert out[:, key:].isnan().all()
    assert not out[:, :key].isnan().any()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq", [512, 4096])
@pytest.mark.parametrize("d", [64, 128, 256])
def test_the_heuristic_follows_the_strides(d: int, seq: int, causal: bool) -> None:
    by_rows = problem(seq, d, causal=causal)
    chosen = select_config(replace(by_rows, v_transposed=True), MEASURED_ARCH)
    assert isinstance(chosen, HopperFp8KernelConfig)
    assert chosen.values_transposed
    other = select_config(by_rows, MEASURED_ARCH)
    assert isinstance(other, HopperFp8KernelConfig)
    assert not other.values_transposed
    assert (chosen.promote_blocks * chosen.B_c) == (other.promote_blocks * other.B_c)
    uneven = replace(by_rows, v_transposed=True, seqused_k=True)
    assert getattr(select_config(uneven, MEASURED_ARCH), "values_transposed", False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "asked"),
    in_turn(
        [(64, 4096), (128, 4096), (256, 512), (256, 4096)],
        [(False, True), (True, False), (True, True), (False, False)],
    ),
)
def test_loops_of_chosen_kernels_are_neither_serialised_nor_short_of_registers(
    shape: tuple[int, int], asked: tuple[bool, bool]
) -> None:
    (d, seq), (lengths, causal) = shape, asked
    transposed = replace(problem(seq, d, causal=causal), v_transposed=True, seqused_k=lengths)
    config = select_config(transposed, MEASURED_ARCH)
    unit = unit_of(config, replace(CAUSAL_FEATURES if causal else PLAIN, per_batch=lengths))
    compiled = compile_kernel(unit.source, arch=unit.target, name=unit.name)
    assert compiled.resources.notes == ()
    assert compiled.resources.spill_store_bytes <= 32  # at the ends of tiles


def test_a_recipe_is_one_kernel_that_loads_every_other_key_and_column() -> None:
    call = case(200, 330, heads=4, heads_k=2, batch=3).call(128)
    recipe = Plan(call, OVERLAPPED_T).recipe
    (main,) = recipe.steps
    assert (recipe.main, dict(recipe.scratch), main.starts_early) == (0, {}, False)
    assert list(main.maps) == ["q", "k", "v"]
    k, v = main.maps["k"], main.maps["v"]
    assert (k.box, k.steps) == ((128, 1, 64, 1), (1, 1, 2, 1))
    assert (v.dims, v.strides) == ((330, 2, 128, 3), (336 * 128, 336, 336 * 128 * 2))
    assert (v.box, v.steps, v.swizzle) == ((64, 1, 128, 1), (1, 1, 2, 1), 64)
    assert SM90_FP8.companions(OVERLAPPED_T, MEASURED_ARCH) == []


def test_explain_tells_the_layout_and_one_kernel() -> None:
    call = case(200, 330).call(128)
    text = str(explain(*call[:3], **call.keywords()))
    assert "float8_e4m3fn, v transposed" in text
    assert "tensor_sums+linear_1+values_transposed+persistent" in text
    assert "transpose_d128" not in text


def test_a_config_is_for_one_layout_of_v() -> None:
    call = case(70, 130).call(128)
    rows = call._replace(v=call.v.contiguous())
    with pytest.raises(UnsupportedError, match="is for a v of dense tensors whose keys are conti"):
        Plan(rows, OVERLAPPED_T)
    with pytest.raises(UnsupportedError, match="the keys of v are contiguous, and the kernel conf"):
        Plan(call, OVERLAPPED)


def test_another_kernel_for_8_bits_is_refused() -> None:
    call = case(1, 130).call(128)
    short = Plan(call._replace(v=call.v.contiguous())).config
    assert not isinstance(short, HopperFp8KernelConfig)
    assert isinstance(Plan(call).config, HopperFp8KernelConfig)
    with pytest.raises(UnsupportedError, match=r"one with values_transposed, or pass v\.contig"):
        Plan(call, short)


def test_other_architectures_have_no_kernel_for_it() -> None:
    with pytest.raises(UnsupportedError, match=r"v transposed on sm_80: Hopper"):
        select_config(replace(problem(64, 128), v_transposed=True), ARCHES["sm_80"])


def test_torch_computes_on_the_cpu_whatever_the_strides() -> None:
    call = case(40, 70, keywords=(("causal", True),)).call(64)
    rows = call._replace(v=call.v.contiguous())
    out, wanted = (attention(*of[:3], **of.keywords()) for of in (call, rows))
    torch.testing.assert_close(out, wanted, rtol=2**-7, atol=1e-6)


def test_attention_emulates_a_chosen_kernel() -> None:
    call = case(70, 130).call(64)
    config = select_config(Problem.of(call), MEASURED_ARCH)
    out, lse = attention(*call[:3], **call.keywords(), config=config, return_lse=True)
    assert_right(call, out, lse)


def test_attention_of_no_keys_is_zero() -> None:
    call = case(3, 16).call(128)
    empty = Call(call.q, call.k[:, :0], call.v[:, :0], *call[3:])
    out = attention(*empty[:3], **empty.keywords(), config=OVERLAPPED_T)
    assert (out.dtype, out.abs().max().item()) == (torch.bfloat16, 0)


@pytest.mark.parametrize("lengths", [(), used(21)])
def test_a_traced_call_keeps_the_strides(lengths: tuple[tuple[str, Any], ...]) -> None:
    call = case(30, 40, keywords=lengths).call(128)

    def traced(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v, **call.keywords(), config=str(OVERLAPPED_T))

    compiled = torch.compile(traced, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*call[:3]), traced(*call[:3]))
