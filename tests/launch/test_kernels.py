# SPDX-License-Identifier: Apache-2.0
"""The dispatch table as a Mapping, its kernels, and the units that they are loaded from."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention.arch import ARCHES, Arch
from flash_attention.call.features import CAUSAL, PLAIN, Features, MaskKind
from flash_attention.compile import elf
from flash_attention.compile.unit import Unit
from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.families.registry import unit_of
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig
from flash_attention.families.sm90.forward.features import Sm90Features
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    TileOrder,
    get_kernels_to_build,
)
from flash_attention.launch import kernels as dispatch
from flash_attention.launch.device import current_arch
from flash_attention.launch.kernels import (
    compile_config,
    forward_kernels,
    get_kernel,
    load_unit,
)

CONFIG = FlashForwardKernelConfig(
    DType.FP16, 128, 64, 32, 4, True, True, True, 0, 2, 2, False, True
)
INVALID: Any = "(FP16, 128, 64, 32, 4): eager+swizzled+load_0_2_2_tiles+opt_softmax"
HOPPER = HopperForwardKernelConfig(
    *(DType.FP16, 64, 2, 128, 2),
    tma=True,
    specialised=True,
    tile_order=TileOrder.DYNAMIC,
    group_mib=16,
)


@pytest.mark.usefixtures("no_compile")
def test_membership_follows_validity_and_never_compiles() -> None:
    assert CONFIG in forward_kernels
    assert INVALID not in forward_kernels
    strangers: tuple[Any, ...] = (None, "config", 3, [], {}, FlashForwardKernelConfig)
    for stranger in strangers:
        assert stranger not in forward_kernels


@pytest.mark.usefixtures("no_compile")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the device says which configs are valid")
def test_without_a_device_a_hopper_config_counts_for_sm_90() -> None:
    assert HOPPER in forward_kernels
    assert HOPPER.short_form() in forward_kernels
    assert HOPPER.short_form().replace("tma+", "") not in forward_kernels


@pytest.mark.usefixtures("no_compile")
def test_what_a_family_lacks_is_refused_before_anything_is_compiled() -> None:
    gradients = FlashBackwardKernelConfig(DType.BF16, 128, 64, 64, 4)
    with pytest.raises(UnsupportedError, match="block_table is asked for"):
        get_kernel(gradients, ARCHES["sm_90"], Features(per_batch=True, page_keys=64))
    with pytest.raises(KernelConfigError, match="sm_90"):
        get_kernel(HOPPER, ARCHES["sm_80"])


@pytest.fixture
def not_compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be compiled, which is what is compiled to."""
    asked: list[Any] = []

    def note(source: str, **where: str) -> Any:
        asked.append((source, where))
        return asked[-1]

    monkeypatch.setattr(dispatch, "compile_kernel", note)
    monkeypatch.setattr(dispatch, "_kernels", {})
    monkeypatch.setattr(dispatch, "_units", {})
    return asked


def test_features_get_a_kernel_of_their_own_compiled_for_the_familys_target(
    not_compiled: list[Any],
) -> None:
    every = (PLAIN, CAUSAL, Features(MaskKind.WINDOW, softcap=True, per_batch=True))
    kernels = [get_kernel(HOPPER, ARCHES["sm_90"], features) for features in every]
    suffixes = ("", "_causal", "_window_softcap_per_batch")
    assert not_compiled == [
        (
            unit_of(HOPPER, features).source,
            {"arch": "sm_90a", "name": HOPPER.kernel_name() + suffix},
        )
        for features, suffix in zip(every, suffixes, strict=True)
    ]
    assert len({source for source, _ in not_compiled}) == 3
    made: list[Any] = [kernel.compiled for kernel in kernels]
    assert made == not_compiled
    assert [kernel.features for kernel in kernels] == [
        Sm90Features(),
        Sm90Features(MaskKind.CAUSAL),
        Sm90Features(MaskKind.WINDOW, softcap=True, per_batch=True),
    ]
    assert get_kernel(HOPPER, ARCHES["sm_90"]) is kernels[0]
    assert get_kernel(replace(HOPPER, stages=1), ARCHES["sm_90"]) is not kernels[0]
    assert get_kernel(HOPPER, ARCHES["sm_90"], Features(MaskKind.CAUSAL)) is kernels[1]
    assert get_kernel(HOPPER, ARCHES["sm_90"], Sm90Features(MaskKind.CAUSAL)) is kernels[1]
    assert kernels[0].smem_bytes == HOPPER.smem_bytes()
    form = HOPPER.short_form()
    assert repr(kernels[1]) == f"<Kernel {form}, causal, for sm_90>"
    assert repr(kernels[2]) == f"<Kernel {form}, window, softcap, per_batch, for sm_90>"


def test_a_unit_is_loaded_once_whoever_asks_for_it(not_compiled: list[Any]) -> None:
    unit = Unit("some_kernel", "sm_90a", "the source")
    loaded = load_unit(unit)
    assert load_unit(replace(unit)) is loaded
    assert not_compiled == [("the source", {"arch": "sm_90a", "name": "some_kernel"})]
    for change in ({"name": "other"}, {"target": "sm_80"}, {"source": "another source"}):
        assert load_unit(replace(unit, **change)) is not loaded
    assert len(not_compiled) == 4
    assert get_kernel(CONFIG, ARCHES["sm_80"]).unit is load_unit(unit_of(CONFIG))


@pytest.mark.usefixtures("no_compile")
def test_an_invalid_config_names_its_rule_but_get_and_in_stay_quiet() -> None:
    with pytest.raises(KernelConfigError, match="async_copy") as caught:
        forward_kernels[INVALID]
    assert caught.value.rule == "eager_needs_async"
    assert forward_kernels.get(INVALID) is None
    assert forward_kernels.get(INVALID, 7) == 7
    stranger: Any = "not a config"
    assert forward_kernels.get(stranger, 7) == 7
    with pytest.raises(KernelConfigError, match="'not a config' is not a kernel config"):
        forward_kernels[stranger]


def test_shared_memory_is_judged_by_the_architecture() -> None:
    wide = replace(CONFIG, B_r=128, B_c=128, n_warps=8)
    assert wide.smem_bytes() == 96 * 1024
    tiny = Arch("sm_80", 64 * 1024, 64 * 1024, 1024, 16)
    with pytest.raises(KernelConfigError) as caught:
        compile_config(wide, tiny)
    assert caught.value.rule == "shared_memory"


@pytest.mark.usefixtures("no_compile")
def test_iteration_runs_over_the_set_to_build() -> None:
    assert isinstance(forward_kernels, Mapping)
    arch = current_arch()
    expected = [config for config in get_kernels_to_build(arch) if config.broken_rule(arch) is None]
    assert list(forward_kernels) == expected
    assert len(forward_kernels) == len(expected) > 16


@pytest.mark.usefixtures("no_compile")
def test_a_device_without_kernels_has_an_empty_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def unusable(otherwise: Arch) -> Arch:
        raise UnsupportedError("sm_70 is too old")

    monkeypatch.setattr(dispatch, "current_arch", unusable)
    assert list(forward_kernels) == []
    assert CONFIG not in forward_kernels
    assert forward_kernels.get(CONFIG) is None
    with pytest.raises(UnsupportedError, match="sm_70 is too old"):
        forward_kernels[CONFIG]


def test_indexing_compiles_once_and_shows_what_the_compiler_said() -> None:
    kernel = forward_kernels[CONFIG]
    assert forward_kernels[CONFIG] is kernel
    assert forward_kernels.get(replace(CONFIG)) is kernel
    assert compile_config(CONFIG, current_arch()) is kernel.compiled
    assert kernel.arch == current_arch()
    assert kernel.config == CONFIG
    assert len(elf.text_section(kernel.compiled.cubin, kernel.compiled.entry)) > 1000
    assert 32 < kernel.registers <= 255
    assert kernel.spills == 0
    assert kernel.smem_bytes == 2 * 128 * (64 + 32 + 32)
    assert (
        kernel.ctas_per_sm
        == CONFIG.num_ctas_per_sm(arch=kernel.arch, registers=kernel.registers)
        >= 1
    )
    assert kernel.source_path is not None
    assert CONFIG.short_form() in kernel.source_path.read_text()
    assert repr(kernel) == f"<Kernel {CONFIG.short_form()} for {kernel.arch.name}>"


def test_an_architecture_gets_a_kernel_of_its_own() -> None:
    kernels = [get_kernel(CONFIG, ARCHES[name]) for name in ("sm_80", "sm_90")]
    assert [kernel.compiled.arch for kernel in kernels] == ["sm_80", "sm_90"]
    assert kernels[0].compiled.cubin != kernels[1].compiled.cubin
    one_fits = replace(ARCHES["sm_80"], smem_per_sm=CONFIG.smem_bytes() + 1024)
    assert get_kernel(CONFIG, one_fits).ctas_per_sm == 1 < kernels[0].ctas_per_sm


def test_threads_that_ask_at_once_share_one_kernel() -> None:
    config = replace(CONFIG, B_c=64)
    with ThreadPoolExecutor(8) as pool:
        kernels = list(pool.map(lambda _: get_kernel(config, ARCHES["sm_80"]), range(8)))
    assert all(kernel is kernels[0] for kernel in kernels)


@pytest.mark.gpu
def test_a_kernel_loads_once() -> None:
    kernel = forward_kernels[CONFIG]
    assert int(kernel.function) != 0
    assert kernel.function is kernel.function
