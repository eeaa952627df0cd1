# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from flash_attention.arch import ARCHES, DEFAULT_ARCH
from flash_attention.kernel_configs import DType, FlashForwardKernelConfig
from tests.unchecked import unchecked

CONFIG = FlashForwardKernelConfig(DType.BF16, 128, 64, 32, 4, True, True, True, 2, 2, 0, True, True)


def test_the_thirteen_public_fields_keep_their_order() -> None:
    assert [f.name for f in fields(FlashForwardKernelConfig)][:13] == [
        "dtype",
        "d_head",
        "B_r",
        "B_c",
        "n_warps",
        "async_copy",
        "eager_load_blocks",
        "swizzled",
        "Q_mma_load_K_tiles",
        "K_mma_load_K_tiles",
        "V_mma_load_K_tiles",
        "mma_double_buffer_loads",
        "optimized_softmax",
    ]
    assert (CONFIG.B_r, CONFIG.B_c, CONFIG.V_mma_load_K_tiles) == (64, 32, 0)


def test_further_fields_are_off_by_default() -> None:
    assert not any(getattr(CONFIG, f.name) for f in fields(CONFIG)[13:])


def test_configs_are_frozen_hashable_and_ordered() -> None:
    with pytest.raises(FrozenInstanceError):
        CONFIG.B_r = 128  # type: ignore[misc]
    other = replace(CONFIG, dtype=DType.FP16)
    assert sorted({CONFIG, other, replace(CONFIG)}) == [other, CONFIG]


def test_short_form_is_the_documents_form() -> None:
    assert CONFIG.short_form() == (
        "(BF16, 128, 64, 32, 4): async+eager+swizzled+load_2_2_0_tiles+buffer+opt_softmax"
    )
    assert str(CONFIG) == f"{CONFIG}" == CONFIG.short_form()
    assert repr(CONFIG).startswith("FlashForwardKernelConfig(dtype=")


def test_kernel_names_differ_whenever_configs_do() -> None:
    flips: list[dict[str, Any]] = [{name: not getattr(CONFIG, name)} for name in _switches()]
    variants = [CONFIG, *(unchecked(CONFIG, **flip) for flip in flips)]
    variants.append(replace(CONFIG, static_row_stride=2048))
    names = {cfg.kernel_name() for cfg in variants}
    assert len(names) == len(variants)
    assert all(name.replace("_", "").isalnum() for name in names)


def test_cpp_struct_says_every_choice() -> None:
    struct = CONFIG.to_cpp_struct()
    assert struct.startswith("struct Config {\n  using DType = fa::dtype::Bf16;\n")
    for line in (
        "static constexpr int kBC = 32;",
        "using Schedule = fa::sm80::schedule::Eager;",
        "using KFragmentLoads = fa::sm80::fragment_loads::DoubleBuffered<2>;",
        "using VFragmentLoads = fa::sm80::fragment_loads::Whole;",
        "using RowStride = fa::sm80::row_stride::FromArgs;",
    ):
        assert f"  {line}\n" in struct
    fixed = replace(CONFIG, static_row_stride=2048).to_cpp_struct()
    assert "using RowStride = fa::sm80::row_stride::Fixed<2048>;" in fixed


def _switches() -> list[str]:
    return [f.name for f in fields(CONFIG) if f.type == "bool"]


def test_every_field_changes_the_struct() -> None:
    other_values: dict[str, Any] = {
        "dtype": DType.FP16,
        "d_head": 64,
        "B_r": 128,
        "B_c": 64,
        "n_warps": 8,
        "Q_mma_load_K_tiles": 1,
        "K_mma_load_K_tiles": 1,
        "V_mma_load_K_tiles": 1,
        "static_row_stride": 1024,
        **{name: not getattr(CONFIG, name) for name in _switches()},
    }
    assert set(other_values) == {f.name for f in fields(CONFIG)}
    for name, value in other_values.items():
        changed = unchecked(CONFIG, **{name: value})
        assert changed.to_cpp_struct() != CONFIG.to_cpp_struct(), name


def test_shared_memory_is_one_block_each_of_q_k_and_v() -> None:
    assert CONFIG.smem_bytes() == CONFIG.smem_bytes(elem_size=2) == (64 + 32 + 32) * 128 * 2
    assert CONFIG.smem_bytes(1) == (64 + 32 + 32) * 128


def test_resident_ctas_follow_the_scarcest_resource() -> None:
    sm80, sm86 = ARCHES["sm_80"], ARCHES["sm_86"]
    assert CONFIG.num_ctas_per_sm(arch=sm80) == 4  # 167936 // (32768 + 1024)
    assert CONFIG.num_ctas_per_sm(arch=sm86) == 3
    assert CONFIG.num_ctas_per_sm(max_smem_bytes=164 * 1024) == 4
    assert CONFIG.num_ctas_per_sm(100 * 1024, registers=255) == 2
    assert CONFIG.num_ctas_per_sm(arch=sm80, registers=255) == 2  # 65536 // (256 * 128)
    assert CONFIG.num_ctas_per_sm(arch=sm80, registers=168) == 3


def test_the_target_is_the_architecture_itself() -> None:
    assert CONFIG.target(ARCHES["sm_90"]) == "sm_90"
    assert CONFIG.default_arch is DEFAULT_ARCH
