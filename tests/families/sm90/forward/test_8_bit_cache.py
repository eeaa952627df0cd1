# SPDX-License-Identifier: Apache-2.0
"""Keys and values of 8 bits with queries of 16 bits or 8: numbers, and what the emulator finds."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import (
    HopperForwardKernelConfig,
    HopperFp8KernelConfig,
    KernelConfigError,
    UnsupportedError,
    attention,
)
from flash_attention.call.call import Call
from flash_attention.call.dtype import DType
from flash_attention.launch.emulation import Settings
from flash_attention.launch.plan import Plan
from ptx_emulator import SCHEDULES
from tests.devices import on_devices, ran
from tests.families.sm90.forward.cases_8_bit import CASES, E4M3, Case, assert_right
from tests.gate import one_in

ONE = torch.ones(1)
EVERY_ORDER = [
    *("decoding", "decoding, pages of 16", "prefill, causal", "packed queries, pages"),
    *("q of 8 bits, decoding", "q of 8 bits, packed, pages", "blocks, packed"),
]


LARGE = {
    f"decoding, {keys} keys, pages of {page}, d {d}, {dtype}": Case(
        *(1, keys, 32, 8),
        batch=4,
        d=d,
        dtype=dtype,
        page=page,
        used=(keys, keys // 3, 1, 0),
    )
    for keys, page, d, dtype in product(
        (512, 8192), (0, 16, 64), (64, 128, 256), (torch.bfloat16, torch.float16)
    )
} | {
    f"prefill, {seq}, d {d}, causal {causal}": Case(
        seq, seq, heads=4, batch=2, d=d, keywords=(("causal", causal),), sharp=True
    )
    for seq, d, causal in product((500, 2048), (64, 80, 128, 160, 192, 256), (False, True))
}


def computed(call: Call, schedule: str = "lockstep") -> tuple[Tensor, Tensor | None]:
    return ran(Plan(call), call, Settings(schedule))


@pytest.mark.parametrize(("name", "device"), on_devices(one_in(3, CASES), LARGE))
def test_the_output_and_its_lse_are_right(name: str, device: str, schedule: str) -> None:
    call = (CASES | LARGE)[name].call(device)
    assert_right(call, *computed(call, schedule))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "schedule"), product(EVERY_ORDER, [s for s in SCHEDULES if s != "lockstep"])
)
def test_they_are_right_in_every_order_of_warps(name: str, schedule: str) -> None:
    call = CASES[name].call()
    assert_right(call, *computed(call, schedule))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_code_is_converted_exactly(dtype: torch.dtype) -> None:
    """A query sees one key, so that the output is a row of v."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[codes & 0x7F != 0x7F]  # not NaN
    v = codes.view(E4M3)[: 254 // 16 * 16].reshape(1, 1, 1, -1)
    q, k = torch.zeros(1, 1, 1, 16, dtype=dtype), torch.zeros(1, 1, 1, 16).to(E4M3)
    one = torch.ones(1)
    out, _ = computed(Call(q, k, v, k_descale=one, v_descale=one, return_lse=True))
    assert torch.equal(out, v.to(dtype))


def test_results_are_those_of_the_same_numbers_in_16_bits() -> None:
    """Numbers of 8 bits are numbers of 16, and factors of 1 and 2 change no bit."""
    call = Case(1, 500, batch=2).call()
    call = call._replace(k_descale=torch.tensor([2.0]), v_descale=torch.tensor([1.0]))
    wide = Call(call.q * 2, call.k.to(call.q.dtype), call.v.to(call.q.dtype), split_keys=128)
    narrow = call._replace(split_keys=128, return_lse=False)
    assert torch.equal(computed(narrow)[0], computed(wide)[0])


def test_nan_reaches_the_rows_that_see_it_and_no_other() -> None:
    call = Case(130, 130, heads=2, heads_k=1, keywords=(("causal", True),)).call()
    k = call.k.float()
    k[:, 90] = torch.nan
    out, _ = computed(call._replace(k=k.to(E4M3)))
    assert out[:, 90:].isnan().all()
    assert not out[:, :90].isnan().any()


def test_a_factor_of_zero_weighs_all_keys_alike() -> None:
    call = Case(2, 200, keywords=(("causal", True),)).call()
    call = call._replace(k_descale=torch.zeros(1, 2))
    assert_right(call, *computed(call))


def test_queries_of_8_bits_have_one_factor_for_blocks_of_keys() -> None:
    call = Case(140, 200, q_8_bit=True, blocks=2).call()
    call = call._replace(q_descale=ONE)
    assert_right(call, *computed(call))
    with pytest.raises(
        UnsupportedError, match="FP8 kernels have one factor for all keys of a head"
    ):
        Plan(call, "hopper_fp8(BF16, 128, 2, 64, 2): persistent")


def test_equal_factors_of_all_blocks_are_one_factor() -> None:
    call = (
        Case(2, 300).call()._replace(k_descale=torch.tensor([2.0]), v_descale=torch.tensor([0.5]))
    )
    of_blocks = call._replace(
        k_descale=torch.full((1, 2, 3), 2.0), v_descale=torch.full((1, 2, 3), 0.5)
    )
    assert torch.equal(computed(call)[0], computed(of_blocks)[0])


def test_key_blocks_are_no_larger_than_blocks_with_a_factor() -> None:
    large = "hopper(BF16, 64, 2, 144, 2): tma+specialised+kv_8_bit"
    with pytest.raises(UnsupportedError, match=r"of the config has 144 keys; .* up to 128"):
        Plan(Case(140, 300, d=64, blocks=3).call(), large)


def test_queries_of_8_bits_may_have_an_output_of_fp16() -> None:
    call = Case(1, 200, q_8_bit=True).call()
    call = call._replace(out=torch.empty(call.q.shape, dtype=torch.float16))
    out, lse = computed(call)
    assert out.dtype == torch.float16
    assert_right(call, out, lse)


def test_long_queries_of_8_bits_have_products_of_8_bits() -> None:
    dense, paged = Case(200, 200, q_8_bit=True), Case(200, 200, page=10, used=(9,), q_8_bit=True)
    for case in (dense, paged):
        assert isinstance(Plan(case.call()).config, HopperFp8KernelConfig)


def test_a_chosen_kernel_says_that_it_converts() -> None:
    plan = Plan(Case().call())
    assert isinstance(plan.config, HopperForwardKernelConfig)
    assert plan.config.kv_8_bit
    assert "k and v float8_e4m3fn" in str(plan.problem)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"k_descale": None},
            "k is torch.float8_e4m3fn, and k_descale is missing; pass the factor",
        ),
        ({"v_descale": None}, "v is torch.float8_e4m3fn, and v_descale is missing"),
        (
            {"q_descale": ONE},
            "q_descale is given, and q is torch.bfloat16; only torch.float8_e4m3fn",
        ),
        (
            {"k_descale": torch.ones(1, 3)},
            r"k_descale has shape \(1, 3\); it must be \(batch, heads",
        ),
        (
            {"k_descale": torch.ones(1, 2, 3), "v_descale": torch.ones(1, 2)},
            "factors for blocks of keys have the same shape: expand the other",
        ),
        (
            {"k_descale": torch.ones(1, 2, 2), "v_descale": torch.ones(1, 2, 2)},
            "k_descale has 2 blocks, and a sequence has up to 300 keys; pass at least 3 blocks",
        ),
        (
            {"k_descale": torch.ones(2, 1, 3)},
            r"it must be .* or \(batch, heads_k, blocks\) for blocks of 128 keys",
        ),
        ({"v_descale": torch.ones(1).double()}, "v_descale is torch.float64; pass torch.float32"),
        ({"v": torch.zeros(1, 300, 2, 128).bfloat16()}, "k and v must agree in dtype"),
        (
            {"k": torch.zeros(1, 300, 2, 128).to(torch.float8_e5m2)},
            "k is torch.float8_e5m2; allowed are",
        ),
        ({"q": torch.zeros(1, 2, 4, 128)}, "q is torch.float32; allowed are torch.float16"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        Plan(Case().call()._replace(**change))


def test_configs_of_16_bits_refuse_8_and_the_other_way_round() -> None:
    call = Case(140, 140).call()
    of_16_bits = "hopper(BF16, 128, 2, 64, 2): tma+specialised"
    with pytest.raises(UnsupportedError, match=r"for k and v of torch\.bfloat16, they are torch"):
        Plan(call, of_16_bits)
    wide = Call(call.q, call.k.bfloat16(), call.v.bfloat16())
    with pytest.raises(UnsupportedError, match=r"for k and v of torch\.float8_e4m3fn, they"):
        Plan(wide, f"{of_16_bits}+kv_8_bit")
    with pytest.raises(UnsupportedError, match=r"for k and v of torch\.bfloat16, they are torch"):
        Plan(call, "rung:16")


def test_fp8_configs_refuse_what_they_do_not_read() -> None:
    fp8 = "hopper_fp8(BF16, 128, 2, 64, 2): persistent"
    message = "cu_seqlens_q is given, .* pass one with TileOrder.DYNAMIC"
    with pytest.raises(UnsupportedError, match=message):
        Plan(CASES["q of 8 bits, packed"].call(), fp8)


def test_gradients_are_refused() -> None:
    call = Case(140, 140).call()
    with pytest.raises(UnsupportedError, match="there are no gradients of 8-bit tensors"):
        attention(call.q.requires_grad_(), call.k, call.v, k_descale=ONE, v_descale=ONE)


def test_a_converter_needs_a_producer_and_its_registers() -> None:
    with pytest.raises(KernelConfigError, match="kv_8_bit=True is for kernels with a producer"):
        HopperForwardKernelConfig(DType.BF16, 64, 2, 64, 1, tma=True, kv_8_bit=True)
    with pytest.raises(KernelConfigError, match="use 1 or 2 consumers or set kv_8_bit=False"):
        HopperForwardKernelConfig(
            DType.BF16, 64, 3, 64, 2, tma=True, specialised=True, kv_8_bit=True
        )
    with pytest.raises(KernelConfigError, match="set kv_8_bit=True or q_8_bit=False"):
        HopperForwardKernelConfig(
            DType.BF16, 64, 2, 64, 2, tma=True, specialised=True, q_8_bit=True
        )
