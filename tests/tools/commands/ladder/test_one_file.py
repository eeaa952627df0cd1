# SPDX-License-Identifier: Apache-2.0
"""One file of a rung: hermetic, in order, and the very same machine code."""

from __future__ import annotations

import re

import pytest

from flash_attention.compile import compile_kernel
from flash_attention.compile.elf import text_section
from flash_attention.compile.includes import include_closure
from flash_attention.compile.unit import translation_unit
from flash_attention.ladder import get_ladder
from flash_attention.launch.kernels import compile_config
from flash_attention.tools.commands.ladder.one_file import one_file

LAST = len(get_ladder())


@pytest.mark.parametrize("number", [1, 8, 16, LAST])
def test_it_compiles_to_the_machine_code_of_the_rung(number: int) -> None:
    config = get_ladder()[number - 1].config
    arch = config.default_arch
    alone = compile_kernel(
        one_file(translation_unit(config)), arch=config.target(arch), name=f"one_file_{number}"
    )
    together = compile_config(config, arch)
    assert text_section(alone.cubin) == text_section(together.cubin)


def test_every_header_is_there_once_after_what_it_includes() -> None:
    unit = translation_unit(get_ladder()[-1].config)
    text = one_file(unit)
    assert "#include" not in text
    assert "#pragma once" not in text
    assert text.count("SPDX") == 1
    marked = re.findall(r"^// ===== (fa/\S+) =====$", text, re.MULTILINE)
    headers = include_closure(unit)
    assert sorted(marked) == sorted(headers)
    for name, body in headers.items():
        for needed in re.findall(r"#include <(\S+)>", body):
            assert marked.index(needed) < marked.index(name)
