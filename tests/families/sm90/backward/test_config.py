# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from flash_attention.errors import KernelConfigError
from flash_attention.families.sm90.backward.family import SM90_BACKWARD
from flash_attention.kernel_configs import parse_kernel_config
from tests.families.sm90.backward.cases import config

FASTEST = config(128)
WIDE = config(256, dq="workspace", derivative="exact", schedule="split")
STORED = config(64, dq="workspace", order="one_each")


def test_short_forms_and_names_are_read_back() -> None:
    assert FASTEST.short_form() == (
        "hopper_backward(BF16, 128, 64, 128, 2): dq_own_warpgroup+ds_2+rounded+in_place+grouped_8"
    )
    configs = list(SM90_BACKWARD.search_space())
    assert len(configs) == len(set(configs)) > 100
    for each in configs:
        assert parse_kernel_config(each.short_form()) == each
        assert SM90_BACKWARD.parse_name(each.kernel_name() + "_causal_per_batch") == each
    assert sorted(configs) == sorted(reversed(configs))


def test_an_unknown_word_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(KernelConfigError, match="unknown word 'in_plac'; did you mean 'in_place'"):
        parse_kernel_config("hopper_backward(BF16, 128, 64, 128, 2): in_plac")


def test_resources() -> None:
    tiles = 3 * 128 * 128 * 2 + 4 * 64 * 128 * 2  # K, V, dV or dK, two stages of Q and dO
    assert FASTEST.smem_bytes() == tiles + 2 * 64 * 128 * 2 + 64 * 128 * 4 + 4 * 64 * 4 + 512
    assert WIDE.smem_bytes() == 6 * 64 * 256 * 2 + 4 * 64 * 64 * 2 + 7 * 64 * 4 + 512
    assert (FASTEST.num_threads, FASTEST.computing_warps) == (512, 12)
    assert (STORED.num_threads, STORED.computing_warps) == (384, 8)
    assert (WIDE.num_threads, WIDE.computing_warps) == (384, 12)
    for kernel, key in ((FASTEST, "key"), (STORED, "key")):
        registers = kernel.registers
        total = registers["producer"] + 2 * registers[key] + registers.get("query", 0)
        assert total * 128 <= 65536
    assert 128 * (WIDE.registers["score"] + 2 * WIDE.registers["gradient"]) <= 65536
