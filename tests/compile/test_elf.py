# SPDX-License-Identifier: Apache-2.0
"""Machine code is cut out of real cubins, and damaged ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from flash_attention.compile.elf import ENTRY, build_id, text_section
from flash_attention.compile.nvrtc import compile_source, options
from flash_attention.errors import CompileError
from tests.compile.sources import COPY, TWICE

BYTES_PER_INSTRUCTION = 16


def cubin(source: str, source_name: str = "kernel.cu", arch: str = "sm_80") -> bytes:
    return compile_source(source, source_name=source_name, arguments=options(arch)).cubin


def test_text_follows_the_code_and_nothing_else() -> None:
    text = text_section(cubin(COPY))
    assert text
    assert len(text) % BYTES_PER_INSTRUCTION == 0
    assert text_section(cubin(f"// a comment\n\n{COPY}", "/elsewhere/other.cu")) == text
    assert text_section(cubin(TWICE)) != text
    assert text_section(cubin(COPY, arch="sm_90")) != text


def test_text_is_that_of_the_named_kernel() -> None:
    both = cubin(COPY + TWICE.replace("flash_forward_kernel", "twice"))
    assert (
        text_section(both, ENTRY) == text_section(cubin(COPY)) == text_section(cubin(COPY), ENTRY)
    )
    assert text_section(both, "twice") == text_section(cubin(TWICE))


def test_missing_kernel_is_named_beside_those_that_are_there() -> None:
    with pytest.raises(CompileError, match=r"no kernel 'absent'; it has flash_forward_kernel"):
        text_section(cubin(COPY), "absent")
    two = cubin(COPY + TWICE.replace("flash_forward_kernel", "twice"))
    with pytest.raises(CompileError, match=r"no kernel None; it has \w+, \w+"):
        text_section(two)


@pytest.mark.parametrize("size", [0, 10, 64, 600])
def test_cut_off_cubin_is_refused(size: int) -> None:
    with pytest.raises(CompileError, match="not a whole cubin"):
        text_section(cubin(COPY)[:size])


def test_build_id_reads_the_note(tmp_path: Path) -> None:
    from cuda.pathfinder import load_nvidia_dynamic_lib

    library = Path(load_nvidia_dynamic_lib("nvrtc").abs_path)
    identity = build_id(library)
    assert identity is not None
    assert bytes.fromhex(identity) in library.read_bytes()
    unmarked = tmp_path / "kernel.cubin"
    unmarked.write_bytes(cubin(COPY))
    assert build_id(unmarked) is None
