# SPDX-License-Identifier: Apache-2.0
"""Compile logs, made by NVRTC here or quoted from it, become the right numbers."""

from __future__ import annotations

import pytest

from flash_attention.compile.elf import ENTRY
from flash_attention.compile.log import Resources, parse_log
from flash_attention.compile.nvrtc import compile_source, options
from flash_attention.errors import CompileError
from tests.compile.sources import COPY, SPILLING

TWO_ENTRIES = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'other' for 'sm_80'
ptxas info    : Function properties for other
ptxas         .     128 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 11 registers, used 0 barriers, 128 bytes cumulative stack size
ptxas info    : Compile time = 15.332 ms
ptxas info    : Compiling entry function 'flash_forward_kernel' for 'sm_80'
ptxas info    : Function properties for flash_forward_kernel
ptxas         .     592 bytes stack frame, 536 bytes spill stores, 544 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 608 bytes cumulative stack size
ptxas info    : Compile time = 58.894 ms
ptxas info    : Function properties for _Z1fPfi
ptxas         .     16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
"""

SERIALISED = (
    "(C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
    "insufficient register resources for the wgmma pipeline in the function 'flash_forward_kernel'"
)
IGNORED = (
    "(C7508) Potential Performance Loss: 'setmaxnreg' ignored; "
    "unable to determine register count at entry."
)
WITH_NOTES = f"""\
ptxas info    : {SERIALISED}
ptxas info    : {IGNORED}
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'flash_forward_kernel' for 'sm_90a'
ptxas info    : Function properties for flash_forward_kernel
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 0 barriers
"""

SETMAXNREG_WITHOUT_BOUNDS = """\
extern "C" __global__ void flash_forward_kernel(float* x) {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  x[threadIdx.x] = 1;
}
"""


def compiled_log(source: str, arch: str) -> str:
    return compile_source(source, source_name="kernel.cu", arguments=options(arch)).log


def test_lean_kernel_spills_nothing() -> None:
    resources = parse_log(compiled_log(COPY, "sm_80"), ENTRY)
    assert 4 <= resources.registers <= 16
    assert resources == Resources(resources.registers, 0, 0, 0, ())


def test_spills_of_a_real_kernel_are_counted() -> None:
    resources = parse_log(compiled_log(SPILLING, "sm_80"), ENTRY)
    assert resources.registers == 32  # 65536 registers / (2 * 1024 threads)
    assert resources.spill_store_bytes >= 64
    assert resources.spill_load_bytes >= 64
    assert resources.stack_bytes >= 64


def test_a_real_setmaxnreg_note_is_kept() -> None:
    (note,) = parse_log(compiled_log(SETMAXNREG_WITHOUT_BOUNDS, "sm_90a"), ENTRY).notes
    assert note.startswith("(C75")
    assert "setmaxnreg" in note


def test_notes_are_kept_in_order_and_word_for_word() -> None:
    assert parse_log(WITH_NOTES, ENTRY) == Resources(30, 0, 0, 0, (SERIALISED, IGNORED))


def test_only_the_entry_and_what_it_calls_counts() -> None:
    assert parse_log(TWO_ENTRIES, ENTRY) == Resources(
        registers=32,
        stack_bytes=608,
        spill_store_bytes=536 + 24,
        spill_load_bytes=544 + 32,
        notes=(),
    )


@pytest.mark.parametrize("missing", ["Used 32", "592 bytes stack", "'flash_forward_kernel' for"])
def test_log_without_the_numbers_is_an_error(missing: str) -> None:
    lines = [line for line in TWO_ENTRIES.splitlines() if missing not in line]
    if "stack" in missing:
        lines = [line for line in lines if "16 bytes stack" not in line]
    with pytest.raises(CompileError, match="states no registers of 'flash_forward_kernel'"):
        parse_log("\n".join(lines), ENTRY)
