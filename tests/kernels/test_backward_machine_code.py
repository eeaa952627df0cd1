# SPDX-License-Identifier: Apache-2.0
"""The sm_80 backward kernels in NVRTC alone: they do not spill, and every switch is real."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from flash_attention.arch import ARCHES
from flash_attention.call.dtype import DType
from flash_attention.call.features import CAUSAL, PLAIN, Features
from flash_attention.compile import CompiledKernel, compile_kernel
from flash_attention.compile.elf import text_section
from flash_attention.families.registry import unit_of
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig
from flash_attention.families.sm80.backward.features import Sm80BackwardFeatures
from flash_attention.families.sm80.backward.heuristic import heuristic
from flash_attention.families.sm80.backward.rungs import STEPS, base
from tests.gate import EXHAUSTIVE
from tests.hopper_configs import square

pytestmark = pytest.mark.slow  # left out of `make quick`

ONLY_DQ = Sm80BackwardFeatures(dk=False, dv=False)
TOP = FlashBackwardKernelConfig(
    *(DType.BF16, 64, 64, 64, 4),
    stages=2,
    eager_load_blocks=True,
    swizzled=True,
    folded_addresses=True,
)


def compiled(
    config: FlashBackwardKernelConfig, features: Features = PLAIN, arch: str = "sm_80"
) -> CompiledKernel:
    unit = unit_of(config, features, ARCHES[arch])
    return compile_kernel(unit.source, arch=unit.target, name=unit.name)


def test_no_rung_spills_and_every_rung_is_new_code() -> None:
    config = base(DType.BF16, 128)
    kernels = [compiled(config)]
    for _, _, change in STEPS:
        config = replace(config, **change)
        kernels.append(compiled(config))
    assert [kernel.resources.spill_bytes for kernel in kernels] == [0] * len(kernels)
    assert len({text_section(kernel.cubin) for kernel in kernels}) == len(kernels)


@pytest.mark.parametrize(
    ("d_head", "arch", "features"),
    [
        *((64, "sm_80", CAUSAL), (128, "sm_86", CAUSAL), (128, "sm_90", ONLY_DQ)),
        (256, "sm_90", CAUSAL),
        *(
            pytest.param(d_head, arch, CAUSAL, marks=EXHAUSTIVE)
            for d_head, arch in ((64, "sm_90"), *product((128, 256), ("sm_80", "sm_86", "sm_90")))
            if (d_head, arch) not in ((128, "sm_86"), (256, "sm_90"))
        ),
    ],
)
def test_what_the_heuristic_chooses_does_not_spill(
    d_head: int, arch: str, features: Features
) -> None:
    config = heuristic(square(DType.BF16, d_head, 1024), ARCHES[arch])
    assert isinstance(config, FlashBackwardKernelConfig)
    assert compiled(config, features, arch).resources.spill_bytes == 0


SHOWN_BY_RUNGS = {field for _, _, change in STEPS for field in change}
CHANGES: list[dict[str, Any]] = [
    {"B_r": 32},
    {"B_c": 128, "n_warps": 8},
    {"stages": 1},
    {"mma_load_tiles": 2},
    {"dq_warp_rows": 32},
    {"column_warps": 2},
    {"swizzled": False},
    {"register_operands": True},
    {"stages": 1, "eager_load_blocks": False},
    {"mma_double_buffer_loads": True},
    {"folded_addresses": False},
    {"stage_output": True},
    {"cache_hints": True},
    {"vector_additions": True},
]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            change, id=str(change), marks=EXHAUSTIVE if change.keys() <= SHOWN_BY_RUNGS else ()
        )
        for change in CHANGES
    ],
)
def test_every_field_changes_the_machine_code(change: dict[str, Any]) -> None:
    one, two = (compiled(config, arch="sm_90") for config in (TOP, replace(TOP, **change)))
    assert text_section(one.cubin) != text_section(two.cubin)
