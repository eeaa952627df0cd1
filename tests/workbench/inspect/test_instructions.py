# SPDX-License-Identifier: Apache-2.0
"""Instruction counts from machine code, and from PTX where there is no disassembler."""

from __future__ import annotations

import pytest

from flash_attention.arch import DEFAULT_ARCH
from flash_attention.kernel_configs import FlashForwardKernelConfig
from flash_attention.ladder import get_ladder
from flash_attention.launch.kernels import compile_config
from flash_attention_workbench.inspect import sass
from flash_attention_workbench.inspect.instructions import count_instructions


def no_nvdisasm(cubin: bytes) -> list[sass.Instruction]:
    raise sass.InspectorMissing("none here")


def test_ptx_and_machine_code_have_the_same_products(monkeypatch: pytest.MonkeyPatch) -> None:
    config = get_ladder()[1].config
    assert isinstance(config, FlashForwardKernelConfig)
    compiled = compile_config(config, DEFAULT_ARCH)
    machine = count_instructions(compiled)
    monkeypatch.setattr(sass, "disassemble", no_nvdisasm)
    ptx = count_instructions(compiled)
    assert (machine.language, ptx.language) == ("SASS", "PTX")
    assert sum(ptx.mix.values()) == ptx.opcodes.total()
    products = 2 * config.B_r * config.B_c * config.d_head // (16 * 8 * 16 * config.n_warps)
    for counted in (machine, ptx):
        assert counted.mix["tensor core"] == products
    assert ptx.mix["async copy"] == machine.mix["async copy"] > 0
    assert ptx.mix["shared read"] == machine.opcodes["LDSM"] > 0


def test_every_ptx_instruction_has_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "disassemble", no_nvdisasm)
    for number in (16, len(get_ladder())):
        config = get_ladder()[number - 1].config
        mix = count_instructions(compile_config(config, config.default_arch)).mix
        assert mix["other"] < sum(mix.values()) / 100
