# SPDX-License-Identifier: Apache-2.0
"""The family of FP8 kernels: what it chooses, its recipes, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention import attention, explain, forward
from flash_attention.arch import ARCHES, MEASURED_ARCH
from flash_attention.call.features import CAUSAL, PLAIN
from flash_attention.call.problem import Problem
from flash_attention.choose.heuristic import select_config
from flash_attention.compile import compile_kernel
from flash_attention.errors import UnsupportedError
from flash_attention.families.recipe import Setting
from flash_attention.families.registry import unit_of
from flash_attention.families.sm90.fp8.config import HopperFp8KernelConfig
from flash_attention.families.sm90.fp8.family import SM90_FP8
from flash_attention.launch.plan import Plan
from tests.families.sm90.fp8.cases import OVERLAPPED, SERIAL, Case
from tests.gate import in_turn


def problem(seq: int, d: int, **others: Any) -> Problem:
    return Problem(
        *(4, seq, seq, 16, 16, d, d, torch.float8_e4m3fn, d**-0.5),
        out_dtype=torch.bfloat16,
        **others,
    )


GRID = [
    (d, seq, causal) for d in (64, 128, 256) for seq in (1024, 4096, 16384) for causal in (0, 1)
]


@pytest.mark.parametrize(("d", "seq", "causal"), GRID)
def test_the_heuristic_promotes_after_at_most_1024_keys(d: int, seq: int, causal: int) -> None:
    config = select_config(problem(seq, d, causal=bool(causal)), MEASURED_ARCH)
    assert isinstance(config, HopperFp8KernelConfig)
    assert config.d_head == d
    keys_between = (config.promote_blocks or seq // config.B_c) * config.B_c
    assert keys_between <= 1024
    assert (config.group_mib > 0) == bool(causal)


@pytest.mark.parametrize(
    ("d", "seq", "groups"),
    [(64, 8192, 1), (64, 8193, 0), (128, 16384, 1), (128, 16385, 0), (256, 1024, 0)],
)
def test_weights_are_linear_where_that_was_measured(d: int, seq: int, groups: int) -> None:
    config = select_config(problem(seq, d), MEASURED_ARCH)
    assert isinstance(config, HopperFp8KernelConfig)
    assert config.linear_groups == groups


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "causal"),
    in_turn([(64, 4096), (128, 4096), (256, 1024), (256, 4096)], [False, True]),
)
def test_loops_of_chosen_kernels_are_neither_serialised_nor_short_of_registers(
    shape: tuple[int, int], causal: bool
) -> None:
    d, seq = shape
    config = select_config(problem(seq, d, causal=causal), MEASURED_ARCH)
    unit = unit_of(config, CAUSAL if causal else PLAIN)
    compiled = compile_kernel(unit.source, arch=unit.target, name=unit.name)
    assert compiled.resources.notes == ()
    assert compiled.resources.spill_store_bytes <= 64  # at the ends of tiles


def test_other_architectures_have_no_kernel_for_8_bits() -> None:
    with pytest.raises(UnsupportedError, match=r"no kernel runs .*float8_e4m3fn on sm_80: Hopper"):
        select_config(problem(1024, 128), ARCHES["sm_80"])


def test_a_recipe_transposes_v_first_into_scratch_memory() -> None:
    call = Case(200, 330, heads=4, heads_k=2, batch=3).call(128)
    plan = Plan(call, OVERLAPPED)
    transpose, main = plan.recipe.steps
    assert transpose.geometry.grid == (6 * 3 * 2, 1, 1)  # 384 keys, 64 a CTA, of 6 heads
    assert plan.recipe.scratch == {"v_tiles": 384 * 6 * 136}
    assert main.starts_early
    assert list(main.maps) == ["q", "k"]
    assert main.maps["k"].box == (128, 1, 64, 1)


def test_descale_factors_of_any_strides_are_read_in_place() -> None:
    call = Case(batch=2, heads=4, heads_k=2).call(128)
    assert call.k_descale is not None
    spread = torch.zeros(2, 2, 3)
    spread[..., 0] = call.k_descale
    call = call._replace(k_descale=spread[..., 0], v_descale=torch.ones(1).expand(2, 2))
    arguments: Any = Plan(call, OVERLAPPED).recipe.arguments
    strides = [getattr(arguments, f"{name}_descale_stride") for name in "qkv"]
    assert [(s.batch, s.head) for s in strides] == [(2, 1), (6, 3), (0, 0)]


def test_tensors_of_other_types_are_refused() -> None:
    call = Case().call(128)
    q, k, v = call.q.half(), call.k.half(), call.v.half()
    with pytest.raises(UnsupportedError, match=r"config is for torch\.float8_e4m3fn, the tens"):
        forward(OVERLAPPED, q, k, v)
    out = torch.empty(call.q.shape, dtype=torch.float16)
    with pytest.raises(UnsupportedError, match=r"stores torch\.bfloat16, the output is torch\.fl"):
        Plan(call._replace(out=out), OVERLAPPED)
    with pytest.raises(UnsupportedError, match="config is for d_head up to 64, q and k have d_hea"):
        Plan(call, SERIAL)


def test_a_launch_takes_only_so_many_tiles() -> None:
    large = replace(problem(1 << 20, 128), heads=1 << 16, heads_k=1 << 16)
    views = Plan(Case(1, 1).call(128), OVERLAPPED).views
    with pytest.raises(UnsupportedError, match="a launch takes at most 2147483647"):
        SM90_FP8.recipe(OVERLAPPED, large, views, Setting(MEASURED_ARCH, 132))


def test_explain_tells_both_kernels_and_the_peak_of_8_bits() -> None:
    call = Case(200, 330).call(128)
    text = str(explain(*call[:3], **call.keywords()))
    assert "transpose_d128_tensor_sums" in text
    assert "hopper_fp8(BF16, 128, 2, 128, 3)" in text
    assert "at 1494 TFLOP/s" in text


def test_attention_of_no_keys_is_zero() -> None:
    call = Case(3, 1).call(128)
    empty = call._replace(k=call.k[:, :0], v=call.v[:, :0])
    out = attention(*empty[:3], **empty.keywords(), config=OVERLAPPED)
    assert (out.dtype, out.abs().max().item()) == (torch.bfloat16, 0)


def test_gradients_of_8_bits_are_refused() -> None:
    call = Case(3, 4).call(128)
    message = "there are no gradients of 8-bit tensors and their factors; pass 16-bit tensors, or"
    with pytest.raises(UnsupportedError, match=message):
        attention(call.q.clone().requires_grad_(), call.k, call.v, **call.keywords())
    for name, factor in call.descales().items():
        other: dict[str, Any] = {name: factor.clone().requires_grad_()}
        learned = call._replace(**other)
        with pytest.raises(UnsupportedError, match=message):
            attention(*call[:3], **learned.keywords())
        with torch.no_grad():
            attention(*call[:3], **learned.keywords())
    with torch.no_grad():
        attention(call.q.clone().requires_grad_(), call.k, call.v, **call.keywords())


def test_tangents_of_factors_are_refused() -> None:
    call = Case(3, 4).call(128)

    def scaled(factor: torch.Tensor) -> torch.Tensor:
        return attention(*call[:3], **call._replace(v_descale=factor).keywords())

    factor = call.descales()["v_descale"]
    with pytest.raises(UnsupportedError, match="a tensor has a tangent"):
        torch.func.jvp(scaled, (factor,), (factor,))


def test_a_traced_call_is_one_operator_with_the_same_result() -> None:
    call = Case(30, 40).call(128)

    def traced(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v, **call.keywords())

    compiled = torch.compile(traced, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*call[:3]), traced(*call[:3]), rtol=2**-7, atol=1e-6)


def test_an_output_of_other_types_is_refused() -> None:
    call = Case(3, 4).call(128)
    with pytest.raises(UnsupportedError, match=r"the output is torch\.float32; the output of "):
        attention(*call[:3], out=torch.empty(call.q.shape), **call.keywords())
